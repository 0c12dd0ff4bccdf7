"""Runs that share a data set or model folder: whoever makes it is alone, whoever reads it is left alone."""

import json
import multiprocessing
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from pydantic import BaseModel

from agentic.files import locked_folder
from agentic.models.prepare import prepare as prepare_model
from agentic.models.settings import PathModel
from agentic.tasks.manifest import hash_tree, read_manifest
from agentic.tasks.prepare import prepare as prepare_data
from agentic.tasks.settings import MutationData

SMALL = MutationData(train=4, same_template=1, new_template=1)


def quiet(done: int, total: int, message: str) -> None:
    assert 0 <= done <= total, message


def never() -> None:
    raise AssertionError("nobody holds the folder")


def other_model(tmp_path: Path, name: str) -> PathModel:
    """A folder that passes for a whole model."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return PathModel(path=str(folder))


def make(out: Path, seed: int) -> None:
    prepare_data(SMALL.model_copy(update={"seed": seed}), out, quiet)


def test_runs_with_other_settings_at_once_leave_one_whole_data_set(tmp_path: Path) -> None:
    out = tmp_path / "repair"
    start = multiprocessing.get_context("spawn").Process
    runs = [start(target=make, args=(out, seed)) for seed in (1, 2, 3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0, 0, 0]
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.seed in (1, 2, 3)
    assert manifest.content_sha256 == hash_tree(out / "tasks")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".repair.lock", "repair"]


type Said = Callable[[int, int, str], None]


def makers(kind: str, tmp_path: Path) -> list[Callable[[Said], BaseModel]]:
    """Two that want other contents in one folder."""
    out = tmp_path / "shared"
    if kind == "data":
        return [partial(prepare_data, SMALL.model_copy(update={"seed": seed}), out) for seed in (1, 2)]
    return [partial(prepare_model, other_model(tmp_path, name), None, out) for name in ("one", "two")]


@pytest.mark.parametrize("kind", ["data", "model"])
def test_a_folder_that_is_read_is_replaced_only_after_that(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "shared"
    replace = makers(kind, tmp_path)
    mine = replace[0](quiet)
    said: SimpleQueue[str] = SimpleQueue()
    with locked_folder(out, never, exclusive=False), locked_folder(out, never, exclusive=False):
        second = threading.Thread(target=replace[1], args=(lambda done, total, message: said.put(message),))
        second.start()
        assert f"another {kind}.name" in said.get(timeout=10)
        with pytest.raises(Empty):
            said.get(timeout=0.5)
        again = replace[0](quiet)
        assert again.model_dump()["reused"], "a run that wants what is there need not wait"
        assert again.model_dump()["recipe_sha256"] == mine.model_dump()["recipe_sha256"]
    second.join(20)
    assert not replace[0](quiet).model_dump()["reused"]
