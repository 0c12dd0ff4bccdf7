"""Runs with different settings in one workspace: each gets its own results, or is told that it cannot."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentic.files import locked_folder
from agentic.tasks.manifest import read_manifest
from steps import build_images, download_data, download_model, evaluate, train
from steps.contract import StepOutput
from steps.markers import Marker

DATA = {"source": "mutation", "train": 6, "same_template": 1, "new_template": 1}


def get_data(run_id: str, train: int) -> download_data.DownloadDataOutput:
    inputs = {"run_id": run_id, "data": DATA | {"train": train}}
    return download_data.run(download_data.DownloadDataInput.model_validate(inputs))


def get_model(run_id: str, folder: Path) -> download_model.DownloadModelOutput:
    inputs = {"run_id": run_id, "model": {"source": "path", "path": str(folder)}, "data_dir": "datasets/repair"}
    return download_model.run(download_model.DownloadModelInput.model_validate(inputs))


def a_model(folder: Path) -> Path:
    """A folder that passes for a whole model."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return folder


def getters(kind: str, here: Path) -> list[Callable[[str], StepOutput]]:
    """Two settings that want other contents in one folder."""
    if kind == "data":
        return [lambda run_id: get_data(run_id, 6), lambda run_id: get_data(run_id, 4)]
    folders = [a_model(here / name) for name in ("one", "two")]
    return [lambda run_id: get_model(run_id, folders[0]), lambda run_id: get_model(run_id, folders[1])]


def content(here: Path) -> list[tuple[str, str]]:
    manifest = read_manifest(here / "datasets/repair")
    links = [("model", str(path.resolve())) for path in sorted((here / "models").glob("[!.]*"))]
    return [("tasks", manifest.content_sha256 if manifest else ""), *links]


@pytest.mark.parametrize("kind", ["data", "model"])
def test_a_step_is_done_only_while_its_folder_is_the_one_it_made(here: Path, kind: str) -> None:
    first, other = getters(kind, here)
    made = first("a")
    mine = content(here)
    assert "done before" in first("a").result
    assert "done in" in other("b").result
    assert content(here) != mine
    again = first("a")
    assert "done in" in again.result, "the other run's folder is not what this step made"
    assert again.model_dump(exclude={"result"}) == made.model_dump(exclude={"result"})
    assert content(here) == mine
    assert "done before" in first("a").result


def test_a_torn_model_is_not_done(here: Path) -> None:
    folder = a_model(here / "one")
    get_model("a", folder)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(SystemExit) as ended:
        get_model("a", folder)
    assert ended.value.code == 78


TRAINED = {"steps": 2, "best_step": 2, "best_rate": 0.5, "first_rate": None, "checkpoint": "checkpoints/global_step_2"}


def read_shared(step: Any) -> None:
    """A step of run a that reads the data set, and the model if it takes one."""
    inputs = getattr(step, step.__name__.rpartition(".")[2].title().replace("_", "") + "Input")
    given = {**inputs.EXAMPLE, "run_id": "a"}
    step.run(inputs.model_validate(given | ({"model_dir": "models/local"} if "model_dir" in given else {})))


READERS = [(build_images, "data"), (train, "data"), (train, "model"), (evaluate, "data"), (evaluate, "model")]


@pytest.mark.parametrize(("step", "kind"), READERS, ids=[f"{step.__name__}-{kind}" for step, kind in READERS])
def test_a_step_refuses_a_folder_that_another_run_replaced(
    here: Path, capsys: pytest.CaptureFixture[str], step: Any, kind: str
) -> None:
    first, other = getters(kind, here)
    first("a")
    other("b")
    Marker(here / "runs/a", "train", {}).write(TRAINED, attempt=1, started=0, ended=1)
    with pytest.raises(SystemExit) as ended:
        read_shared(step)
    assert ended.value.code == 78
    said = capsys.readouterr().err
    assert "is not what this run made: start again from download-" in said
    assert said.count("\n") == 1


def test_a_step_holds_the_data_set_while_it_reads_it(runner: Any, here: Path) -> None:
    get_data("a", 6)
    out = here / "datasets/repair"
    inputs = {"run_id": "b", "data": DATA | {"train": 4}}
    with locked_folder(out, lambda: None, exclusive=False):
        waiting = runner.start(runner.by_hand("steps.download_data", inputs))
        progress = here / "runs/b/progress/download-data.json"
        while not progress.exists():
            assert waiting.poll() is None
        assert "waiting for another run" in json.loads(progress.read_text())["message"]
        assert len(list((out / "tasks").iterdir())) == 8
    assert waiting.wait(30) == 0
    assert len(list((out / "tasks").iterdir())) == 6
