"""The command line as people use it: in a process of its own, by its exit code and by what it prints."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from agentic import processes
from workflows.request import OPTIONS
from workflows.submit import VERBS, main

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = ROOT / "workflows" / "submit.py"
SMALL = ["--profile", "demo", "data.train=4", "data.same_template=1", "data.new_template=0", "machine.memory_gib=0.1"]


class Ended(NamedTuple):
    """How the command ended."""

    code: int
    out: str
    err: str


def submit(*arguments: str, **environment: str) -> Ended:
    done = subprocess.run(
        [sys.executable, str(SUBMIT), *arguments],
        cwd=ROOT,
        env=os.environ | {"KUBECONFIG": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def test_help_has_examples_and_imports_nothing_heavy() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(SUBMIT), "--help"], capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    assert "python3 workflows/submit.py local --profile demo" in done.stdout
    imported = set(re.findall(r"\|\s+([\w.]+)$", done.stderr, re.MULTILINE))
    assert not imported & {"hera", "pydantic", "rich", "yaml", "kubernetes", "torch"}
    # Processor time, since the machine may be busy with other tests.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


@pytest.mark.parametrize("step", ["preflight", "train", "build_images"])
def test_a_steps_help_imports_no_machine_learning(step: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", f"steps.{step}", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    imported = set(re.findall(r"\|\s+([\w.]+)$", done.stderr, re.MULTILINE))
    assert done.returncode == 0
    assert not imported & {"torch", "ray", "vllm", "verl", "transformers", "harbor", "pyarrow", "kubernetes"}
    # About 0.8 s of it is Hera's own import; the bound leaves room for a slower machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_render_prints_the_workflow() -> None:
    ended = submit("render", "--profile", "demo", "--run-id", "first", "train.steps=4")
    assert ended.code == 0
    document = yaml.safe_load(ended.out)
    assert document["kind"] == "Workflow"
    assert document["metadata"]["name"] == "agentic-rl-first"
    train = next(p["value"] for p in document["spec"]["arguments"]["parameters"] if p["name"] == "train")
    assert json.loads(train)["steps"] == 4


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command in the test's own process: the same, without a second of imports each time."""

    def run(*arguments: str, **environment: str) -> Ended:
        for name, value in {"KUBECONFIG": "/nonexistent", **environment}.items():
            monkeypatch.setenv(name, value)
        try:
            code = main(arguments)
        except SystemExit as error:
            code = int(error.code or 0)
        return Ended(code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["render", "train.stpes=3"], "unknown setting train.stpes: did you mean train.steps?"),
        (["lcoal"], "there is no verb 'lcoal': use submit, local, render, plan, status, logs"),
        (["local", "--proflie", "demo"], "there is no option --proflie: see --help"),
        (["local", "--profile", "dmeo"], "no profile dmeo: there are cluster-demo, demo, grpo-math, math, ppo-gsm8k, "),
        (["render", "--run-id", "My Run"], "--run-id My Run: use lower-case letters, digits and dashes"),
        (["render", "--start-from", "trian"], "there is no step trian to start from: use preflight"),
        (["render", "demo"], "'demo' is no setting: write section.key=value"),
        (["--target", "moon"], "argument --target: invalid choice: 'moon'"),
        (["status"], "name a run: python3 workflows/submit.py status RUN"),
        (["status", "nothing"], "there is no run nothing in"),
        (["status", ".."], "no run is called '..': names have lower-case letters"),
        (["explain", ""], "no run is called ''"),
        (["cleanup", "a,b"], "no run is called 'a,b'"),
        (["report", "../first"], "no run is called '../first'"),
        (["logs", "First", "train"], "no run is called 'First'"),
        (["logs", "first", "*"], "there is no step *: use preflight, download-data"),
        (["logs", "first", "../train"], "there is no step ../train: use"),
        (["logs", "first", "build-images-x"], "there is no step build-images-x: use"),
        (["render", "--profile", "{binary}"], "profile {binary} is not YAML: 'utf-8' codec can't decode"),
        (["retry", "first", "train.steps=3"], "retry does not heed train.steps=3: the run keeps its settings; resume"),
        (["status", "--run-id", "first"], "status does not heed --run-id: name the run as status RUN"),
        (["local", "--target", "argo"], "local runs on this machine: --target argo belongs to submit"),
        (["logs", "nothing"], "name the run and the step"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_78(
    quick: Callable[..., Ended], tmp_path: Path, arguments: list[str], line: str
) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\x80\x81")
    given = [word.format(binary=binary) for word in arguments]
    ended = quick(*given, AGENTIC_WORKSPACE=str(tmp_path / "none"))
    assert ended.code == 78
    assert ended.err.startswith(line.format(binary=binary))
    assert ended.err.count("\n") == 1
    assert ended.out == ""
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("/proc/ws", "workspace /proc/ws cannot be written"),
        ("/dev/null", "workspace /dev/null cannot be written"),
        ("/dev/null/below", "workspace /dev/null/below cannot be written"),
        ("{here}", "Is a directory at {here}/runs/blocked/local.lock"),
    ],
)
def test_a_workspace_that_cannot_be_written_is_one_line_and_78(
    quick: Callable[..., Ended], tmp_path: Path, place: str, line: str
) -> None:
    (tmp_path / "runs" / "blocked" / "local.lock").mkdir(parents=True)
    workspace = place.format(here=tmp_path)
    ended = quick("local", "--profile", "demo", "--run-id", "blocked", AGENTIC_WORKSPACE=workspace)
    assert ended.code == 78
    assert ended.err.startswith(line.format(here=tmp_path))
    assert ended.err.count("\n") == 1


def test_a_full_workspace_is_one_line_and_75(tmp_path: Path) -> None:
    # No file may get a first byte: the closest thing to a full disk that needs no right to mount one.
    command = ["prlimit", "--fsize=0", sys.executable, str(SUBMIT), "local", "--profile", "demo", "--run-id", "full"]
    environment = os.environ | {"AGENTIC_WORKSPACE": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert done.stderr == "no space left: free disk space, then go on\n"


@pytest.mark.parametrize("kubeconfig", ["/nonexistent", ""])
def test_without_a_cluster_it_says_so_and_names_local(
    quick: Callable[..., Ended], tmp_path: Path, kubeconfig: str
) -> None:
    ended = quick("--profile", "demo", KUBECONFIG=kubeconfig, HOME=str(tmp_path))
    assert ended.code == 75
    assert ended.out == ""
    assert ended.err.startswith("no Kubernetes cluster can be reached")
    assert "python3 workflows/submit.py local" in ended.err
    assert ended.err.count("\n") == 1
    assert ended.err.count("KUBECONFIG") == 1


@pytest.mark.parametrize("words", [[], ["watch", "first"], ["explain", "first"], ["logs", "first", "train"]])
def test_without_a_cluster_nothing_else_is_said_by_anybody(tmp_path: Path, words: list[str]) -> None:
    """In a process of its own, where no test runner takes what libraries log."""
    ended = submit(*words, AGENTIC_WORKSPACE=str(tmp_path))
    assert (ended.code in {75, 78}, ended.out) == (True, "")
    assert ended.err.count("\n") == 1, ended.err


def test_a_reader_that_has_enough_is_no_failure() -> None:
    """As with `| head -1`."""
    command = [sys.executable, str(SUBMIT), "render", "--profile", "demo"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(timeout=50)
    assert (process.returncode, said) == (141, "")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("field", OPTIONS)
def test_an_option_that_a_verb_does_not_heed_is_refused(quick: Callable[..., Ended], field: str, verb: str) -> None:
    option, verbs = OPTIONS[field]
    if verb in verbs:
        return
    values = {"run_id": ["first"], "start_from": ["train"], "objects": ["somewhere"]}
    ended = quick(verb, option, *values.get(field, []))
    assert (ended.code, ended.out) == (78, "")
    assert ended.err.startswith(f"{verb} does not heed {option}: ")
    assert ended.err.count("\n") == 1


def test_a_run_that_begins_at_its_report_succeeds_without_an_evaluation(tmp_path: Path) -> None:
    ended = submit("local", *SMALL, "--run-id", "late", "--start-from", "report", AGENTIC_WORKSPACE=str(tmp_path))
    assert ended.code == 0, ended.err
    assert f"report      {tmp_path}/runs/late/report.html" in ended.out


def test_plan_says_what_would_run_and_makes_nothing(quick: Callable[..., Ended], tmp_path: Path) -> None:
    ended = quick("plan", "--profile", "demo", AGENTIC_WORKSPACE=str(tmp_path / "w"))
    assert ended.code == 0, ended.err
    assert re.search(r"^step +train after launch-cluster$", ended.out, re.MULTILINE)
    assert "datasets/repair: 688 tasks, not in this workspace" in ended.out
    assert re.search(r"^pods +1 CPUs, 2Gi: preflight, download-data, .*train", ended.out, re.MULTILINE)
    assert re.search(r"^pods +8 CPUs, 32Gi: download-model, build-images$", ended.out, re.MULTILINE)
    assert not (tmp_path / "w").exists()


def test_preflight_ends_a_local_run_before_anything_is_made(tmp_path: Path) -> None:
    arguments = ["local", *SMALL, "--run-id", "small", "machine.memory_gib=100000", "cluster.retries=0"]
    ended = submit(*arguments, AGENTIC_WORKSPACE=str(tmp_path))
    assert ended.code == 75
    assert "of memory are available but 100000 are needed" in ended.out
    going_on = f"AGENTIC_WORKSPACE={tmp_path} python3 workflows/submit.py local --profile demo --run-id small"
    assert f"to go on: {going_on}" in ended.out
    assert list((tmp_path / "datasets").iterdir()) == []
    assert list((tmp_path / "models").iterdir()) == []


def test_ctrl_c_leaves_nothing_running_and_going_on_skips_what_is_done(tmp_path: Path) -> None:
    command = [sys.executable, str(SUBMIT), "local", *SMALL, "--run-id", "cut", "model.steps=100000"]
    environment = os.environ | {"AGENTIC_WORKSPACE": str(tmp_path)}
    training = tmp_path / "runs/cut/progress/download-model.json"
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 40
        while not training.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        screen, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, screen
    assert not processes.find("cut", tmp_path)
    assert re.search(r"cleanup +Succeeded", screen)
    going_on = f"python3 workflows/submit.py local {' '.join(SMALL[:2])} --run-id cut {SMALL[2]}"
    assert f"to go on: AGENTIC_WORKSPACE={tmp_path} {going_on}" in screen
    again = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert again.stdout is not None
        lines: list[str] = []
        while not any("download-model" in line for line in lines):
            lines.append(again.stdout.readline())
        again.send_signal(signal.SIGINT)
        again.communicate(timeout=30)
    finally:
        again.kill()
    assert any(re.search(r"download-data +Succeeded .*done before", line) for line in lines), lines
    assert not processes.find("cut", tmp_path)


def test_a_python_without_the_packages_says_make_setup(tmp_path: Path) -> None:
    copied = tmp_path / "workflows" / "submit.py"
    copied.parent.mkdir()
    copied.write_text(SUBMIT.read_text())
    base = Path(sys.base_prefix) / "bin" / "python3"
    done = subprocess.run([str(base), "-I", str(copied), "render"], capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert done.stderr == "Python 3.12 with the project's packages is needed to go on: run make setup\n"


def test_a_python_without_the_packages_goes_on_with_the_projects_own(tmp_path: Path) -> None:
    copied = tmp_path / "workflows" / "submit.py"
    python = tmp_path / ".venv" / "bin" / "python"
    for path in (copied, python):
        path.parent.mkdir(parents=True)
    copied.write_text(SUBMIT.read_text())
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    base = Path(sys.base_prefix) / "bin" / "python3"
    command = [str(base), "-I", str(copied), "plan", "train.steps=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{copied} plan train.steps=4\n")
