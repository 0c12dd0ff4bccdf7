"""The program that runs inside sandboxes, here without one: its commands, their output, and what it may import."""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentic.rollout.agents import inside_program
from agentic.rollout.agents.inside_program import KEPT_BYTES, Job, command_of, read_job, run_command

SOURCE = Path(inside_program.__file__)


def shell(command, timeout_seconds=10.0):
    return run_command(["/bin/sh", "-c", command], timeout_seconds)


def is_running(words):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes() == "\0".join([*words, ""]).encode():
                return True
        except OSError:
            continue
    return False


def test_it_imports_the_standard_library_alone_and_is_plain_to_old_pythons():
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 7))
    nodes = list(ast.walk(tree))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_a_command_gives_its_streams_and_its_exit_code():
    assert shell("echo out; echo err >&2; exit 3") == ("out\nerr\n", 3)
    assert shell("kill -9 $$") == ("", 137)
    assert shell("cat") == ("", 0), "nobody types"


def test_a_command_out_of_time_takes_along_what_it_started_in_groups_of_their_own():
    lasting = ["sleep", "611.25"]
    began = time.monotonic()
    output, exit_code = shell(f"echo before; timeout 600 {' '.join(lasting)}; echo after", timeout_seconds=0.5)
    assert (output, exit_code) == ("before\n", 124)
    assert time.monotonic() - began < 5
    assert not is_running(lasting)


def test_what_runs_in_the_background_neither_ends_nor_holds_up_its_command(tmp_path):
    done = tmp_path / "done"
    chatter = "i=0; while [ $i -lt 4000 ]; do echo a line that fills the pipe in the end $i; i=$((i+1)); done"
    _, exit_code = shell(f"(while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; {chatter}; touch {done}) &")
    assert exit_code == 0
    (tmp_path / "go").touch()
    until = time.monotonic() + 10
    while not done.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert done.exists()


def test_output_is_bounded_and_keeps_both_ends():
    output, _ = shell(f"echo first; head -c {4 * KEPT_BYTES} /dev/zero | tr '\\0' x; echo last")
    assert len(output) < 2 * KEPT_BYTES + 100
    assert output.startswith("first\n")
    assert output.endswith("xlast\n")
    assert f"[... {2 * KEPT_BYTES + len('first.last.')} bytes left out ...]" in output


def test_a_command_that_cannot_be_started_raises():
    with pytest.raises(OSError, match="no-such-program"):
        run_command(["/no-such-program"], 1.0)


def test_the_jobs_file_is_gone_once_it_is_read(tmp_path):
    job = Job("/s.sock", "/v1/chat/completions", "key", "policy", "Fix it: ü.", 4, 48, 2.5, 2000)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job._asdict()), encoding="utf-8")
    assert read_job(path) == job
    assert not path.exists()


def test_a_model_that_nobody_serves_ends_the_program_with_its_own_exit_code(tmp_path):
    job = Job(str(tmp_path / "none.sock"), "/v1/chat/completions", "secret", "policy", "Fix it.", 4, 48, 2.5, 2000)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job._asdict()))
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SOURCE), str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ,
        timeout=30,
        check=False,
    )
    assert done.returncode == inside_program.NO_ANSWER, done.stderr
    report = json.loads(done.stdout)
    assert report["turns"] == 1
    assert "FileNotFoundError" in report["message"]
    assert "secret" not in done.stdout + done.stderr


def test_a_command_is_what_the_first_fence_holds():
    assert command_of("Look.\n```bash\n ls -l \n```\n```bash\nrm x\n```") == "ls -l"
    assert command_of("```bash\n\n```") is None
    assert command_of("ls") is None
