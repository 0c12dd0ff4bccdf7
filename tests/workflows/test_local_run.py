"""Local runs with real processes: logs, files, deadlines, interruption, and nothing left running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from workflow_documents import RETRY, leaf, task, workflow

from agentic import processes
from workflows.local.run import run_locally

ROOT = Path(__file__).resolve().parents[2]

MAIN = """
import json, sys
from pathlib import Path
from rich.console import Console
from workflows.local.run import run_locally
document, run_id, workspace = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], Path(sys.argv[3])
raise SystemExit(run_locally(document, run_id, workspace, Path.cwd(), Console()))
"""


def execute(document: dict[str, Any], workspace: Path, run_id: str = "r") -> tuple[int, str]:
    screen = StringIO()
    code = run_locally(document, run_id, workspace, ROOT, Console(file=screen, width=200))
    return code, screen.getvalue()


@contextmanager
def started(document: dict[str, Any], workspace: Path, run_id: str) -> Iterator[subprocess.Popen[str]]:
    """The runner as a process of its own, as a terminal would start it."""
    path = workspace / "document.json"
    path.write_text(json.dumps(document))
    command = [sys.executable, "-c", MAIN, str(path), run_id, str(workspace)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in processes.find(run_id, workspace):
            os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_a_run_passes_outputs_on_and_keeps_logs(tmp_path: Path) -> None:
    first = leaf("first", 'echo hello; echo \'["x", "y"]\' > $hera__outputs_directory/items', outputs=["items"])
    first["container"]["env"] = [{"name": "hera__outputs_directory", "value": "/out"}]
    each = leaf("each", "echo got {{inputs.parameters.item}}", inputs=["item"])
    tasks = [
        task("first"),
        task(
            "each",
            depends="first",
            withParam="{{tasks.first.outputs.parameters.items}}",
            arguments={"item": "{{item}}"},
        ),
    ]
    code, screen = execute(workflow(tasks, [first, each]), tmp_path)
    assert code == 0, screen
    logs = tmp_path / "runs" / "r" / "logs"
    assert (logs / "first.log").read_text() == "hello\n"
    assert (logs / "each-1.log").read_text() == "got y\n"
    assert "Succeeded" in screen


def test_commands_see_the_workspace_where_the_container_would(tmp_path: Path) -> None:
    mounted = leaf("a", "test $AGENTIC_WORKSPACE = $HERE -a -d $MODELS && pwd")
    mounted["container"] |= {
        "env": [{"name": "AGENTIC_WORKSPACE", "value": "/workspace"}, {"name": "MODELS", "value": "/workspace/models"}],
        "volumeMounts": [{"name": "models", "mountPath": "/workspace/models"}],
    }
    mounted["container"]["env"].append({"name": "HERE", "value": str(tmp_path)})
    code, screen = execute(workflow([task("a")], [mounted]), tmp_path)
    assert code == 0, screen


@pytest.mark.parametrize(("exit_code", "expected", "attempts"), [(75, 75, 3), (78, 78, 1), (1, 78, 1), (137, 75, 3)])
def test_the_exit_code_says_whether_trying_again_can_help(
    tmp_path: Path, exit_code: int, expected: int, attempts: int
) -> None:
    command = f"echo tried >> tries; echo what to do >&2; exit {exit_code}".replace("tries", str(tmp_path / "tries"))
    document = workflow([task("a")], [leaf("a", command, retryStrategy={**RETRY, "limit": 2})])
    code, screen = execute(document, tmp_path)
    assert code == expected
    assert (tmp_path / "tries").read_text().count("tried") == attempts
    assert f"what to do (exit code {exit_code})" in screen


def test_the_message_that_a_step_leaves_is_shown_rather_than_its_last_line(tmp_path: Path) -> None:
    command = "echo lower rollout.concurrency > $AGENTIC_TERMINATION_LOG; echo Traceback; exit 78"
    _, screen = execute(workflow([task("a")], [leaf("a", command)]), tmp_path)
    assert "lower rollout.concurrency (exit code 78)" in screen


def test_an_attempt_past_its_deadline_is_ended_with_its_children(tmp_path: Path) -> None:
    document = workflow([task("a")], [leaf("a", "sleep 600 & sleep 600", activeDeadlineSeconds=1)])
    started_at = time.monotonic()
    code, screen = execute(document, tmp_path, "late")
    assert code == 75
    assert time.monotonic() - started_at < 10
    assert "longer than the specified deadline" in screen
    assert not processes.find("late", tmp_path)


def test_a_missing_program_is_an_error_of_one_line(tmp_path: Path) -> None:
    broken = leaf("a", retryStrategy=RETRY)
    broken["container"]["command"] = ["no-such-program"]
    code, screen = execute(workflow([task("a")], [broken]), tmp_path)
    assert code == 78
    assert "no-such-program cannot be started: No such file or directory" in screen
    assert "attempt 2" not in screen


def with_script(name: str, text: str) -> dict[str, Any]:
    """A template whose script is a file that the executor writes."""
    template = {key: value for key, value in leaf(name, retryStrategy={**RETRY, "limit": 1}).items()}
    del template["container"]
    return {**template, "script": {"image": "none", "command": ["sh"], "source": text}}


def test_a_full_disk_fails_the_step_as_transient_and_the_exit_handler_runs(tmp_path: Path) -> None:
    leaves = [with_script("a", "#" * 10_000), leaf("tidy", "echo tidied")]
    path = tmp_path / "document.json"
    path.write_text(json.dumps(workflow([task("a")], leaves, onExit="tidy")))
    # No file beyond 4 KiB: the closest thing to a full disk that needs no right to mount one.
    command = ["prlimit", "--fsize=4096", sys.executable, "-c", MAIN, str(path), "full", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 75, done.stderr
    assert re.search(r"a +Failed +attempt 2 .*no space left.*: free disk space, then go on", done.stdout)
    assert "Traceback" not in done.stderr
    assert (tmp_path / "runs" / "full" / "logs" / "tidy.log").read_text() == "tidied\n"


def test_a_place_that_cannot_be_written_fails_the_step_for_good_and_the_exit_handler_runs(tmp_path: Path) -> None:
    blocked = tmp_path / "runs" / "r" / "logs" / "a.log"
    blocked.mkdir(parents=True)
    tidied = tmp_path / "tidied"
    leaves = [leaf("a", retryStrategy=RETRY), leaf("tidy", f"touch {tidied}")]
    code, screen = execute(workflow([task("a")], leaves, onExit="tidy"), tmp_path)
    assert code == 78
    assert f"Is a directory at {blocked}" in screen
    assert tidied.exists()


@pytest.mark.parametrize(
    ("template", "given"),
    [
        (leaf("b", outputs=["x"], retryStrategy=RETRY), {}),
        (leaf("b", "yes | head -c 300000 > $hera__outputs_directory/x", outputs=["x"], retryStrategy=RETRY), {}),
        (leaf("b", inputs=["i"], retryStrategy=RETRY), {"arguments": {"i": "{{tasks.a.outputs.parameters.no}}"}}),
    ],
    ids=["an output that is missing", "an output beyond the limit", "an input without a value"],
)
def test_what_another_try_repeats_is_permanent(tmp_path: Path, template: dict[str, Any], given: dict[str, Any]) -> None:
    template["container"]["env"] = [{"name": "hera__outputs_directory", "value": "/out"}]
    tasks = [task("a", when="'x' == 'y'"), task("b", depends="a", **given)]
    code, screen = execute(workflow(tasks, [leaf("a", outputs=["no"]), template]), tmp_path)
    assert "Errored" in screen
    assert code == 78, screen


def test_a_fan_out_of_which_one_item_may_succeed_later_is_transient(tmp_path: Path) -> None:
    each = leaf("each", "exit {{inputs.parameters.item}}", inputs=["item"], retryStrategy={**RETRY, "limit": 1})
    fan_out = task("each", withItems=["0", "75"], arguments={"item": "{{item}}"})
    code, screen = execute(workflow([fan_out], [each]), tmp_path)
    assert code == 75, screen


def test_an_output_that_was_not_written_is_an_error(tmp_path: Path) -> None:
    _, screen = execute(workflow([task("a")], [leaf("a", outputs=["x"])]), tmp_path)
    assert "output 'x' was not written to /out/x" in screen


def test_daemons_of_a_step_live_until_the_end_of_the_run(tmp_path: Path) -> None:
    daemon = leaf("daemon", "setsid sleep 600 > /dev/null 2>&1 & echo $! > pid".replace("pid", str(tmp_path / "pid")))
    alive = leaf("alive", f"kill -0 $(cat {tmp_path}/pid)")
    code, screen = execute(workflow([task("daemon"), task("alive", depends="daemon")], [daemon, alive]), tmp_path, "d")
    assert code == 0, screen
    assert not processes.find("d", tmp_path)


LONG = [
    leaf("quick", "echo done"),
    leaf("long", "setsid sleep 600 & sleep 600 & echo started > $AGENTIC_WORKSPACE/started; wait"),
    leaf("tidy", "echo {{workflow.status}}; sleep ${TIDY:-0}"),
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_all_children_and_runs_the_exit_handler(tmp_path: Path, number: signal.Signals) -> None:
    run_id = f"int{number.value}"
    document = workflow([task("quick"), task("long", depends="quick")], LONG, onExit="tidy")
    with started(document, tmp_path, run_id) as runner:
        wait_for((tmp_path / "started").exists)
        assert len(processes.find(run_id, tmp_path)) >= 3
        runner.send_signal(number)
        screen, _ = runner.communicate(timeout=30)
    assert runner.returncode == 130, screen
    assert (tmp_path / "runs" / run_id / "logs" / "tidy.log").read_text() == "Failed\n"
    assert "interrupted" in screen
    assert not processes.find(run_id, tmp_path)


def test_a_second_interruption_does_not_wait_for_the_exit_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDY", "600")
    tidying = tmp_path / "runs" / "twice" / "logs" / "tidy.log"
    with started(workflow([task("long")], LONG, onExit="tidy"), tmp_path, "twice") as runner:
        wait_for((tmp_path / "started").exists)
        runner.send_signal(signal.SIGINT)
        wait_for(lambda: tidying.exists() and tidying.read_text() != "")
        runner.send_signal(signal.SIGINT)
        runner.communicate(timeout=30)
    assert runner.returncode == 130
    assert not processes.find("twice", tmp_path)


def test_a_killed_runner_leaves_a_run_that_can_be_taken_up(tmp_path: Path) -> None:
    document = workflow([task("long")], LONG)
    with started(document, tmp_path, "killed") as runner:
        wait_for((tmp_path / "started").exists)
        runner.kill()
        runner.wait()
        assert processes.find("killed", tmp_path)
        code, screen = execute(workflow([task("quick")], LONG), tmp_path, "killed")
    assert code == 0, screen
    assert not processes.find("killed", tmp_path)


def test_one_run_is_executed_by_one_process(tmp_path: Path) -> None:
    from workflows.errors import RunBusyError

    with started(workflow([task("long")], LONG), tmp_path, "busy") as runner:
        wait_for((tmp_path / "started").exists)
        with pytest.raises(RunBusyError, match=f"executed by process {runner.pid}"):
            execute(workflow([task("quick")], LONG), tmp_path, "busy")
        assert runner.poll() is None
