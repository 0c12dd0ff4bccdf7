"""The real steps, small: alone, killed at random moments, and against a machine that lacks something."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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


def chain() -> list[tuple[str, dict[str, Any]]]:
    """The cheap steps in order, each with small real inputs."""
    return [
        ("steps.download_data", {"run_id": "r", "data": DATA, "shards": 1}),
        ("steps.download_model", {"run_id": "r", "model": MODEL, "data_dir": "datasets/repair"}),
        (
            "steps.build_images",
            {"run_id": "r", "data_dir": "datasets/repair", "shard": "0/1", "images": {}, "sandbox": SANDBOX},
        ),
        ("steps.report", {"run_id": "r"}),
        ("steps.cleanup", {"run_id": "r", "sandbox": SANDBOX, "status": "Failed"}),
    ]


def content(workspace: Path) -> dict[str, bytes]:
    """What the steps made, without logs, times and what names a process."""
    kept = {}
    for folder in ("datasets", "models"):
        for path in sorted((workspace / folder).rglob("*")):
            if path.is_file() and path.suffix != ".json":
                kept[str(path.relative_to(workspace))] = path.read_bytes()
    return kept


@pytest.mark.timeout(300)
def test_steps_killed_at_random_moments_end_the_same(runner: Any, tmp_path: Path) -> None:
    moment = random.Random(11)
    for (module, inputs), kills in zip(chain(), (2, 2, 1, 1, 1), strict=True):
        for _ in range(kills):
            process = runner.start(runner.by_hera(module, inputs))
            try:
                process.wait(moment.uniform(1.0, 3.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        ended = runner.run(runner.by_hera(module, inputs))
        assert ended.code == 0, (module, ended.err)
    killed = content(tmp_path)
    outputs = {path.name: path.read_text() for path in (tmp_path / "outputs/parameters").iterdir()}
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".partial", ".tmp")]
    for folder in ("datasets", "models", "images", "runs", "outputs"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
    for module, inputs in chain()[:3]:
        assert runner.run(runner.by_hera(module, inputs)).code == 0
    assert content(tmp_path) == killed
    assert json.loads(outputs["shards"]) == ["0/1"]
    assert int(outputs["built"]) + int(outputs["reused"]) == 9


def preflight_inputs(**changes: Any) -> dict[str, Any]:
    settings = load_settings("demo", ["machine.memory_gib=0.1", "machine.disk_gib=0.1"], {}).model_dump(mode="json")
    sections: dict[str, Any] = {name: settings[name] for name in SECTIONS}
    return {"run_id": "r", "profile": "demo", **sections, **changes}


def check(runner: Any, environment: Mapping[str, str] | None = None, **changes: Any) -> Any:
    command = runner.by_hand("steps.preflight", preflight_inputs(**changes))
    done = subprocess.run(
        command, env=runner.environment() | (environment or {}), capture_output=True, text=True, check=False
    )
    assert done.stderr.count("preflight: ") <= 1, done.stderr
    return done


def test_preflight_writes_the_settings_of_the_run(runner: Any, tmp_path: Path) -> None:
    assert check(runner, {"AGENTIC_TARGET": "argo"}).returncode == 0
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
        done = check(runner, {"AGENTIC_TARGET": "argo"}, rollout={"proxy": {"port": port}})
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
    missing = {"run_id": "r", "data_dir": "datasets/repair", "shard": "0/1", "images": {}, "sandbox": SANDBOX}
    ended = runner.run(runner.by_hera("steps.build_images", missing))
    assert ended.code == 78
    assert ended.err.count("\n") == 1
    assert "datasets/repair/tasks" in ended.err


def test_evaluation_without_training_says_so(runner: Any) -> None:
    ended = runner.run(runner.by_hand("steps.evaluate", dict(evaluate.EvaluateInput.EXAMPLE)))
    assert ended.code == 78
    assert ended.err == "evaluate: training of run try has not ended: run the step train first\n"


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size; needs the right to mount."""
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_disk_that_fills_up_may_pass_and_leaves_nothing_half_done(runner: Any, tmp_path: Path) -> None:
    inputs = {"run_id": "r", "data": DATA | {"train": 64}, "shards": 1}
    with small_disk(tmp_path / "disk", "256k") as disk:
        command = runner.by_hand("steps.download_data", inputs)
        environment = runner.environment() | {"AGENTIC_WORKSPACE": str(disk)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 75, done.stderr
        assert "space" in done.stderr.splitlines()[-1]
        assert not list((disk / "runs/r").glob("done/*.json"))
        assert not (disk / "datasets/repair").exists()
