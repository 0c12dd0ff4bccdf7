"""The real steps, small: alone, killed at random moments, and against a machine that lacks something."""

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from agentic.tasks.manifest import hash_tree
from steps import (
    build_images,
    cleanup,
    download_data,
    download_model,
    evaluate,
    launch_cluster,
    preflight,
    report,
    train,
)
from workflows.pipeline import SECTIONS
from workflows.settings import load_settings

STEPS = [preflight, download_data, download_model, build_images, launch_cluster, train, evaluate, report, cleanup]
DATA = {"source": "mutation", "train": 6, "same_template": 2, "new_template": 1}
MODEL = {"source": "tiny", "hidden": 64, "layers": 1, "demonstrations": 64, "steps": 2, "batch": 4, "threads": 1}
SANDBOX = {"provider": "bubblewrap"}


def input_of(module: Any) -> Any:
    name = "".join(word.capitalize() for word in module.__name__.rpartition(".")[2].split("_"))
    return getattr(module, f"{name}Input")


@pytest.mark.parametrize("module", STEPS, ids=lambda module: module.__name__)
def test_the_example_of_a_steps_help_is_valid(module: Any) -> None:
    inputs = input_of(module).model_validate(input_of(module).EXAMPLE)
    assert module.__name__.rpartition(".")[2].replace("_", "-") == inputs.STEP


@pytest.mark.parametrize("module", STEPS, ids=lambda module: module.__name__)
def test_every_input_of_a_step_is_explained(module: Any) -> None:
    assert [name for name, field in input_of(module).model_fields.items() if not field.description] == []


def chain() -> list[tuple[Any, dict[str, Any]]]:
    """The steps that need no Ray, in order, each with small real inputs."""
    shard = {"data_dir": "datasets/repair", "shard": "0/1", "images": {}, "sandbox": SANDBOX, "cluster": {}}
    return [
        (preflight, preflight_inputs(sandbox=SANDBOX)),
        (download_data, {"run_id": "r", "data": DATA}),
        (download_model, {"run_id": "r", "model": MODEL, "data_dir": "datasets/repair"}),
        (build_images, {"run_id": "r", **shard}),
        (report, {"run_id": "r"}),
        (cleanup, {"run_id": "r", "sandbox": SANDBOX, "cluster": {}, "status": "Failed"}),
    ]


MADE_IN = {"download-data": "datasets", "download-model": "models", "build-images": "images"}
"""Folders that all runs share, by the step that fills them."""

PARTIAL = re.compile(r"\.(report\.(json|html)|reproduce\.yaml)\.\d+")
"""What the report is written to before it takes its place, which a kill may leave."""

TIMES = {"started", "ended", "updated", "seconds", "attempt", "phases"}
COUNTS = {"built", "reused", "sandboxes", "free_memory_gib", "free_disk_gib"}
"""What differs from one run of the same to the next, beside names of layers."""


def timeless(value: Any) -> Any:
    """The value without what differs; images count the same whether this try built them or found them."""
    if isinstance(value, dict):
        return {name: timeless(item) for name, item in value.items() if name not in TIMES | COUNTS}
    if isinstance(value, str):
        return re.sub(
            r"(\d+) built, (\d+) there already", lambda counts: f"{sum(map(int, counts.groups()))} images", value
        )
    return [timeless(item) for item in value] if isinstance(value, list) else value


def content(workspace: Path) -> dict[str, Any]:
    """What the steps made, without times; of an image its index, and what its own layer adds to the base.

    Not the beginning of a file that a killed writer left beside it: readers never look there.
    """
    kept: dict[str, Any] = {}
    for place in ("datasets", "models", "images/index", "runs/r"):
        for path in sorted((workspace / place).rglob("*")):
            name = str(path.relative_to(workspace))
            if not path.is_file() or path.suffix in (".lock", ".log", ".html") or "/progress/" in name:
                continue
            if PARTIAL.fullmatch(path.name):
                continue
            kept[name] = timeless(json.loads(path.read_bytes())) if path.suffix == ".json" else path.read_bytes()
            if place == "runs/r" and path.suffix == ".jsonl":
                kept[name] = kept[name].replace(b'"status": "cached"', b'"status": "built"')
            if place == "images/index":
                layers = [workspace / "images/layers" / layer for layer in kept[name]["layers"]]
                kept[name]["layers"] = [layer.is_dir() for layer in layers] + [hash_tree(layers[-1])]
    return kept


def finished(workspace: Path) -> dict[str, tuple[int, int]]:
    """Identity and age of every file that lies in its final place, which is written once and never again."""
    files = [path for place in ("datasets", "models", "images/index") for path in (workspace / place).rglob("*.*")]
    seen = {str(path.relative_to(workspace)): path.stat() for path in files if path.is_file()}
    hidden = [name for name in seen if any(part.startswith(".") for part in Path(name).parts)]
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in seen.items() if name not in hidden}


def attempts(workspace: Path, step: str) -> int:
    """How often the step has begun its work."""
    return sum(int(lock.read_text() or 0) for lock in (workspace / "runs/r/done").glob(f"{step}-*.lock"))


def markers(workspace: Path, step: str) -> list[Path]:
    return list((workspace / "runs/r/done").glob(f"{step}-*.json"))


def kill_at(runner: Any, module: Any, inputs: Mapping[str, Any], moment_seconds: float) -> bool:
    """Kill the step that long after its work began; false when it had ended, in which case its work is taken away."""
    step = input_of(module).STEP
    begun = attempts(runner.workspace, step)
    process = runner.start(runner.by_hera(module.__name__, inputs))
    while attempts(runner.workspace, step) <= begun:
        assert process.poll() is None, f"{step} ended before it began"
        time.sleep(0.01)
    time.sleep(moment_seconds)
    process.kill()
    if process.wait() == -signal.SIGKILL and not markers(runner.workspace, step):
        return True
    for path in markers(runner.workspace, step):
        path.unlink()
    if step in MADE_IN:
        shutil.rmtree(runner.workspace / MADE_IN[step])
    return False


def enter(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps that run in this process use the runner's workspace."""
    for name, value in runner.environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.timeout(600)
def test_every_step_killed_at_a_random_moment_of_its_work_ends_the_same(
    runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training, evaluation and the cluster's start need Ray and are killed in the end-to-end tests."""
    once, killed = (runner.beside(name) for name in ("once", "killed"))
    moment = random.Random(11)
    for module, inputs in chain():
        assert once.run(once.by_hera(module.__name__, inputs)).code == 0
        (marker,) = markers(once.workspace, input_of(module).STEP)
        seconds = json.loads(marker.read_text())["seconds"]
        for tries in range(6):
            if kill_at(killed, module, inputs, moment.uniform(0, seconds * 0.9 / 2**tries)):
                break
        else:
            pytest.fail(f"{module.__name__} was never killed at work")
        before = finished(killed.workspace)
        ended = killed.run(killed.by_hera(module.__name__, inputs))
        assert ended.code == 0, (module, ended.err)
        assert before.items() <= finished(killed.workspace).items(), "what was finished was made again"
    assert content(killed.workspace) == content(once.workspace)
    assert not [path for path in killed.workspace.glob("[dm]*/.*") if path.suffix != ".lock"]
    before = finished(killed.workspace)
    enter(killed, monkeypatch)
    for module, inputs in chain():
        if input_of(module).REPLAYED:
            assert "done before" in module.run(input_of(module).model_validate(inputs)).result
    assert finished(killed.workspace) == before


def preflight_inputs(**changes: Any) -> dict[str, Any]:
    settings = load_settings("demo", ["machine.memory_gib=0.1", "machine.disk_gib=0.1"], {}).model_dump(mode="json")
    sections: dict[str, Any] = {name: settings[name] for name in SECTIONS}
    return {"run_id": "r", "profile": "demo", **sections, **changes}


def check(runner: Any, **changes: Any) -> Any:
    command = runner.by_hand("steps.preflight", preflight_inputs(**changes))
    done = subprocess.run(command, env=runner.environment(), capture_output=True, text=True, check=False)
    assert done.stderr.count("preflight: ") <= 1, done.stderr
    return done


def test_preflight_writes_the_settings_of_the_run(runner: Any, tmp_path: Path) -> None:
    assert check(runner, sandbox={"provider": "unsafe-process"}).returncode == 0
    written = json.loads((tmp_path / "runs/r/settings.json").read_text())
    assert written["profile"] == "demo"
    assert set(written) == {"profile", *SECTIONS}


def test_too_little_memory_and_disk_are_both_said_and_may_pass(runner: Any, tmp_path: Path) -> None:
    done = check(runner, machine={"memory_gib": 100000, "disk_gib": 100000}, sandbox={"provider": "unsafe-process"})
    assert done.returncode == 75
    assert "GiB of memory are available but 100000 are needed" in done.stdout
    assert "GiB free but 100000 are needed" in done.stdout
    assert not (tmp_path / "runs/r/settings.json").exists()


def test_a_taken_port_may_pass(runner: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = check(runner, sandbox={"provider": "unsafe-process"}, rollout={"proxy": {"port": port}})
    assert done.returncode == 75
    assert f"port {port} on 127.0.0.1 is taken: end what listens there, or set rollout.proxy.port=0" in done.stderr


def test_a_machine_without_bubblewrap_is_permanent(runner: Any) -> None:
    done = check(runner, sandbox={"provider": "bubblewrap", "bwrap": "no-such-bwrap"})
    assert done.returncode == 78
    assert "no-such-bwrap" in done.stderr


def test_another_python_is_permanent(monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.machine import python_problems

    assert python_problems() == []
    monkeypatch.setattr(sys, "version_info", (3, 11, 4, "final", 0))
    (problem,) = python_problems()
    assert problem.message == "Python 3.11.4 runs this but 3.12 is needed: make setup finds or fetches one"
    assert not problem.transient


def test_a_step_without_what_an_earlier_one_makes_says_so(runner: Any) -> None:
    missing = {
        "run_id": "r",
        "data_dir": "datasets/repair",
        "shard": "0/1",
        "images": {},
        "sandbox": SANDBOX,
        "cluster": {},
    }
    ended = runner.run(runner.by_hera("steps.build_images", missing))
    assert ended.code == 78
    assert ended.err.count("\n") == 1
    assert "datasets/repair/tasks" in ended.err


def test_evaluation_without_training_says_so(runner: Any) -> None:
    ended = runner.run(runner.by_hand("steps.evaluate", dict(evaluate.EvaluateInput.EXAMPLE)))
    assert ended.code == 78
    assert ended.err == "evaluate: training of run try has not ended: run the step train first\n"


LARGE = 256 << 10
"""Bytes of a disk that a step fills with its first large file, where a smaller one would end it earlier."""


def run_on_small_disk(runner: Any, size_bytes: int, module: Any, inputs: Mapping[str, Any]) -> tuple[Any, set[str]]:
    """Run the step in a workspace on a file system of that size, made by bubblewrap without any right.

    The data sets, which lie on a disk of their own, are the runner's. Gives how it ended and what it left.
    """
    disk, left = runner.workspace / "disk", runner.workspace / "left"
    datasets = runner.workspace / "datasets"
    for folder in (disk, datasets):
        folder.mkdir(exist_ok=True)
    mounts = ["--dev-bind", "/", "/", "--size", str(size_bytes), "--tmpfs", str(disk)]
    if module is not download_data:
        mounts += ["--bind", str(datasets), str(disk / "datasets")]
    script = f"AGENTIC_WORKSPACE={disk} \"$@\"; code=$?; find {disk} -printf '%P\\n' > {left}; exit $code"
    command = runner.by_hand(module.__name__, inputs)
    ended = runner.run(["bwrap", *mounts, "--die-with-parent", "sh", "-c", script, "sh", *command])
    return ended, set(left.read_text().split("\n"))


@pytest.mark.parametrize(
    ("module", "size_bytes", "unfinished"),
    [
        (download_data, LARGE, "datasets/repair"),
        (download_model, LARGE, "models/tiny"),
        (build_images, 64 << 10, "images/index/*/*.json"),
        (build_images, 110 << 10, "runs/r/done/*.json"),
        (build_images, LARGE, "images/index/*/*.json"),
    ],
    ids=["data", "model", "base-image", "small-images", "large-images"],
)
def test_a_disk_that_fills_up_may_pass_and_leaves_nothing_half_done(
    runner: Any, tmp_path: Path, module: Any, size_bytes: int, unfinished: str
) -> None:
    _, data = chain()[1]
    if module is not download_data:
        assert runner.run(runner.by_hand("steps.download_data", data)).code == 0
        shutil.rmtree(tmp_path / "runs")
        for path in (tmp_path / "datasets").glob("*/tasks/*/environment/*.py") if size_bytes == LARGE else []:
            path.write_bytes(bytes(2 * LARGE))
    inputs = next(given for step, given in chain() if step is module)
    if module is download_data:
        inputs = inputs | {"data": DATA | {"train": 64}}
    ended, left = run_on_small_disk(runner, size_bytes, module, inputs)
    assert ended.code == 75, ended.err
    assert "space" in ended.err.splitlines()[-1]
    assert "runs/r/logs" in left
    assert not [name for name in left if fnmatch(name, "runs/r/done/*.json") or fnmatch(name, unfinished)]
