"""A plug-in of pytest that writes what became of each test, and on request which functions each one ran.

Copied into sandboxes and loaded there with `-p agentic_probe`; never imported by this project. `PROBE_OUT` names the
file to write, when the session ends: nothing is there after a crash. With `PROBE_TRACE` set, `calls` holds for each
test the functions of files below the working directory, by file and first line. `PROBE_WORD` is the descriptor of a
pipe that holds a word to put into the file, so that a reader knows who wrote it; both are taken out of the environment
before any test is imported.
"""

from __future__ import annotations

import json
import os
import sys

# ruff: noqa: PTH109, PTH118, PTH123
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

MESSAGE_CHARACTERS = 200
outcomes: dict[str, str] = {}
messages: dict[str, str] = {}
calls: dict[str, list[list[str | int]]] = {}
seen: set[tuple[str, int]] = set()
ROOT = os.path.join(os.getcwd(), "")
TRACING = bool(os.environ.get("PROBE_TRACE"))
OUT = os.environ.pop("PROBE_OUT", "")


def _take_word() -> str:
    """Once: a pipe that was read is empty."""
    number = os.environ.pop("PROBE_WORD", "")
    if not number:
        return ""
    with open(int(number), encoding="ascii") as pipe:
        return pipe.read()


WORD = _take_word()


def _enter(code: CodeType, offset: int) -> Any:
    if code.co_filename.startswith(ROOT):
        seen.add((code.co_filename[len(ROOT) :], code.co_firstlineno))
    return sys.monitoring.DISABLE


def pytest_configure() -> None:
    if TRACING:
        tool = sys.monitoring.COVERAGE_ID
        sys.monitoring.use_tool_id(tool, "probe")
        sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, _enter)
        sys.monitoring.set_events(tool, sys.monitoring.events.PY_START)


def pytest_runtest_logstart(nodeid: str) -> None:
    seen.clear()
    if TRACING:
        sys.monitoring.restart_events()


def pytest_runtest_logreport(report: Any) -> None:
    known = outcomes.get(report.nodeid, "passed")
    outcomes[report.nodeid] = report.outcome if known == "passed" else known
    if report.failed and report.nodeid not in messages:
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = (crash.message if crash else str(report.longrepr)).strip().splitlines()
        messages[report.nodeid] = lines[0][:MESSAGE_CHARACTERS] if lines else ""


def pytest_runtest_logfinish(nodeid: str) -> None:
    if TRACING:
        calls[nodeid] = [list(call) for call in sorted(seen)]


def pytest_sessionfinish() -> None:
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump({"word": WORD, "outcomes": outcomes, "messages": messages, "calls": calls}, file)
