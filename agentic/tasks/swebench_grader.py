"""Grades a SWE-bench instance in its sandbox; copied into the task's `tests/` and run there by `tests/test.sh`.

Runs the row's script as SWE-bench's harness does, standard output and error in one log, and lets the package's own
`get_eval_report` say whether the log means resolved. Out of time is not resolved. What the script left running, orphans
included, is ended; then the reward is written, last.

The row and the parsers are read and removed from the disk before the script runs, so that the code under test cannot
look up which lines are asked for; lines that come after pytest's own last line are not read. But a log is text, and
code under test can print the log of a whole run. So where pytest runs the tests a witness goes with it, the probe of
`mutation/probe.py`: it takes a word from a pipe, and if it did, the log counts only when the probe's own record, with
that word, says the same of the listed tests. Where the word is still in the pipe (another runner, or one that passes no
variables on) the log alone is believed, as by the package itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from agentic.tasks.descendants import end_descendants, guard_process

TESTS = Path("/tests")
LOGS = Path("/logs/verifier")
SHOWN_CHARACTERS = 20_000
ENDING_SECONDS = 10.0
FIRST_FD = 60
"""Of the word's pipe: scripts use low descriptors for themselves."""
MENDABLE = ("builtins.", "sys.")
"""What a test may replace and put back when it is torn down, after the probe has looked."""
SUMMARY = re.compile(r"^=+ .*\b(?:passed|failed|errors?|skipped|no tests ran)\b.* in [\d.]+ ?s.*=+$", re.MULTILINE)
MARK = ">>>>> "
LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


class Witness:
    """What the probe knows about a run of pytest that the code under test may have spoken for."""

    def __init__(self, folder: Path) -> None:
        self._out = folder / "witness.json"
        self._word = os.urandom(16).hex()
        reading, writing = os.pipe()
        os.write(writing, self._word.encode())
        os.close(writing)
        self.word_fd = fcntl.fcntl(reading, fcntl.F_DUPFD, FIRST_FD)
        os.close(reading)

    def environment(self) -> dict[str, str]:
        """Of the script: pytest loads the probe before any code of the repository."""
        path = os.environ.get("PYTHONPATH", "")
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), path])),
            "PYTEST_PLUGINS": "agentic_probe",
            "PROBE_WORD": str(self.word_fd),
            "PROBE_OUT": str(self._out),
        }

    def lines(self) -> list[str] | None:
        """A line for each test; none where pytest ended before its session did, or was not itself any more. None when
        no probe was there."""
        os.set_blocking(self.word_fd, False)
        try:
            if os.read(self.word_fd, 64) == self._word.encode():
                return None
        except BlockingIOError:  # Taken, and somebody holds the pipe open.
            pass
        try:
            record = json.loads(self._out.read_text(encoding="utf-8"))
            is_changed = any(not name.startswith(MENDABLE) for name in record["tampered"])
            return list(record["lines"]) if record["word"] == self._word and not is_changed else []
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []


def run_script(seconds: float, log: Path, witness: Witness | None) -> bool:
    """Whether it ended in time; what it started is ended with it."""
    with log.open("wb") as output:
        script = subprocess.Popen(
            ["/bin/bash", str(TESTS / "eval.sh")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=None if witness is None else witness.environment(),
            pass_fds=() if witness is None else (witness.word_fd,),
        )
        try:
            script.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            end_descendants(script.pid, ENDING_SECONDS)
            script.poll()
    return True


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


def is_seen(row: dict[str, object], lines: list[str]) -> bool:
    """Whether the witness saw what the lists ask for, read by the row's own parser. A listed name that is no test's
    (the lists of published rows hold a few) can only be in a log."""
    from swebench.harness.constants import EvalType, ResolvedStatus
    from swebench.harness.grading import get_eval_tests_report, get_resolution_status
    from swebench.harness.log_parsers import PARSER_REGISTRY

    seen = PARSER_REGISTRY[str(row["log_parser"])]("\n".join(lines), SimpleNamespace(**row))
    asked = {kind: [name for name in listed(row, kind) if "::" in name or name in seen] for kind in LISTS}
    report = get_eval_tests_report(seen, asked, eval_type=EvalType(row["eval_type"]))
    return bool(get_resolution_status(report) == ResolvedStatus.FULL.value)


def listed(row: dict[str, object], kind: str) -> list[str]:
    names = row[kind]
    return [str(name) for name in names] if isinstance(names, list) else []


def main() -> None:
    guard_process()
    row, archive = json.loads(take("row.json")), take("swebench.zip")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "test_output.txt"
        witness = Witness(Path(folder)) if row["has_witness"] else None
        in_time = run_script(float(row["seconds"]), log, witness)
        shown = log.read_bytes().decode(errors="replace")[-SHOWN_CHARACTERS:]
        parsers = Path(folder) / "swebench.zip"
        parsers.write_bytes(archive)
        resolved = in_time and is_resolved(row, log, parsers)
        lines = witness.lines() if witness is not None and resolved else None
        is_forged = lines is not None and not is_seen(row, lines)
        sys.stdout.write(shown)
    if is_forged:
        sys.stdout.write("\nthe log says that the tests passed; what ran under pytest did not\n")
    if not in_time:
        sys.stdout.write(f"\nthe tests took longer than {row['seconds']} s\n")
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "reward.json").unlink(missing_ok=True)
    (LOGS / "reward.txt").write_text(f"{int(resolved and not is_forged)}\n")


if __name__ == "__main__":
    main()
