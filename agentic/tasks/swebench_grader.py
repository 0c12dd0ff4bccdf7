"""Grades a SWE-bench instance in its sandbox; copied into the task's `tests/` and run there by `tests/test.sh`.

Runs the row's script as SWE-bench's harness does, standard output and error in one log, and lets the package's own
`get_eval_report` say whether the log means resolved. Out of time is not resolved. What the script left running, orphans
included, is ended; then the reward is written, last.

The row and the parsers are read and removed from the disk before the script runs, so that the code under test cannot
look up which lines are asked for; lines that come after pytest's own last line are not read. The log is text that the
code under test may write to as well: code that knows a test's name from the test files, and prints what a whole run of
pytest prints, can still forge it, as with the package itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

TESTS = Path("/tests")
LOGS = Path("/logs/verifier")
SHOWN_CHARACTERS = 20_000
SUBREAPER, NOT_DUMPABLE = 36, 4
ENDING_SECONDS = 10.0
SUMMARY = re.compile(r"^=+ .*\b(?:passed|failed|errors?|skipped|no tests ran)\b.* in [\d.]+ ?s.*=+$", re.MULTILINE)
MARK = ">>>>> "


def guard_process() -> None:
    """Orphans are ours to end, and nobody of the same user may read our memory or descriptors."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    libc.prctl(NOT_DUMPABLE, 0, 0, 0, 0)


def run_script(seconds: float, log: Path) -> bool:
    """Whether it ended in time; what it started is ended with it."""
    with log.open("wb") as output:
        script = subprocess.Popen(
            ["/bin/bash", str(TESTS / "eval.sh")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            script.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            end_descendants(script)
    return True


def end_descendants(script: subprocess.Popen[bytes]) -> None:
    """Kill children until none is left; the orphans of each round become the children of the next."""
    end = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < end:
        for pid in list_children() or [script.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if script.poll() is not None and not reap():
            return
        time.sleep(0.01)


def reap() -> bool:
    """Whether there are children still."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def list_children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except FileNotFoundError:  # a kernel without this file
        return []


def take(name: str) -> bytes:
    """What a file of the tests holds, which is on the disk no more."""
    path = TESTS / name
    data = path.read_bytes()
    path.unlink()
    return data


def without_late_lines(text: str) -> str:
    """The log without what was printed after pytest's last line, but for the harness' own marks."""
    ends = [found.end() for found in SUMMARY.finditer(text)]
    if not ends:
        return text
    head, tail = text[: ends[-1]], text[ends[-1] :]
    return "\n".join([head, *(line for line in tail.splitlines() if MARK in line)]) + "\n"


def is_resolved(row: dict[str, object], log: Path, parsers: Path) -> bool:
    sys.path.insert(0, str(parsers))
    from swebench.harness.grading import get_eval_report

    instance = str(row["instance_id"])
    # The log is bytes of whatever encoding; the package reads it as text of this process' encoding.
    log.write_text(without_late_lines(log.read_bytes().decode(errors="replace")))
    prediction = {"instance_id": instance, "model_patch": "in the sandbox", "model_name_or_path": "agent"}
    report = get_eval_report(SimpleNamespace(**row), prediction, str(log), include_tests_status=False)
    return bool(report[instance]["resolved"])


def main() -> None:
    guard_process()
    row, archive = json.loads(take("row.json")), take("swebench.zip")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "test_output.txt"
        in_time = run_script(float(row["seconds"]), log)
        shown = log.read_bytes().decode(errors="replace")[-SHOWN_CHARACTERS:]
        parsers = Path(folder) / "swebench.zip"
        parsers.write_bytes(archive)
        resolved = in_time and is_resolved(row, log, parsers)
        sys.stdout.write(shown)
    if not in_time:
        sys.stdout.write(f"\nthe tests took longer than {row['seconds']} s\n")
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "reward.json").unlink(missing_ok=True)
    (LOGS / "reward.txt").write_text(f"{int(resolved)}\n")


if __name__ == "__main__":
    main()
