"""A plug-in of pytest that writes what became of each test, and on request which functions each one ran.

Copied into sandboxes and loaded there with `-p agentic_probe`; never imported by this project. `PROBE_OUT` names the
file to write, when the session ends: nothing is there after a crash. With `PROBE_TRACE` set, `calls` holds for each
test the functions of files below the working directory, by file and first line. `PROBE_WORD` is the descriptor of a
pipe that holds a word to put into the file, so that a reader knows who wrote it, and whether a probe was there at all;
these and `PYTEST_PLUGINS` are taken out of the environment before any test is imported, for pytests that tests start.
Python 3.6 has to read this file: repositories are tested by the Python of their time.

What a report says is not enough: code under test may have put its own in the place of pytest's. So the probe keeps its
own record of what each phase raised, and looks after each import and each phase whether what decides about a test in
pytest, pluggy and unittest is what it was before the first conftest (installed plug-ins may change it before), and
whether nothing imports before pytest's own hook. What is not, is in `tampered`; graders don't believe such a record.
"""

import builtins
import json
import os
import stat
import sys
import unittest.case  # noqa: F401 - so that it is there to be remembered

import pytest

# ruff: noqa: PTH109, PTH118, PTH123
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

MESSAGE_CHARACTERS = 200
outcomes: "dict[str, str]" = {}
expected_failures: "set[str]" = set()
messages: "dict[str, str]" = {}
calls: "dict[str, list[list[str | int]]]" = {}
seen: "set[tuple[str, int]]" = set()
raised: "set[str]" = set()
tampered: "list[str]" = []
known: "list[tuple[Any, str, Any, Any]]" = []
importers: "list[Any]" = []
PARTS = ("reports", "runner", "python", "outcomes", "assertion", "unittest")
RUNNER = ("pluggy", "unittest.case", *(f"_pytest.{part}" for part in PARTS))
BUILT_IN = ("isinstance", "issubclass", "len", "all", "any", "getattr", "repr", "str", "__import__", "__build_class__")
STATUSES = ("SKIPPED", "XFAIL", "PASSED", "FAILED", "ERROR")
ROOT = os.path.join(os.getcwd(), "")
TRACING = bool(os.environ.get("PROBE_TRACE"))
os.environ.pop("PYTEST_PLUGINS", None)


def _take_word() -> str:
    """Once: a pipe that was read is empty. A program between may have closed it."""
    number = os.environ.pop("PROBE_WORD", "")
    try:
        if not number or not stat.S_ISFIFO(os.fstat(int(number)).st_mode):
            return ""
    except OSError:
        return ""
    with open(int(number), encoding="ascii") as pipe:
        return pipe.read()


HAS_WORD = "PROBE_WORD" in os.environ
WORD = _take_word()
OUT = "" if HAS_WORD and not WORD else os.environ.get("PROBE_OUT", "")
os.environ.pop("PROBE_OUT", None)


def _code_of(value: "Any") -> "Any":
    value = getattr(value, "fget", value)
    return getattr(getattr(value, "__func__", value), "__code__", None)


def _remember() -> None:
    """All functions and classes of the runner, by identity, and the code of each function."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(RUNNER):
            continue
        kinds = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
        for owner in (module, *kinds):
            for member, value in list(vars(owner).items()):
                if isinstance(value, type) or _code_of(value) is not None:
                    known.append((owner, member, value, _code_of(value)))
    known.extend((builtins, name, getattr(builtins, name), None) for name in BUILT_IN)


def _look() -> None:
    """Whether they still are."""
    for owner, name, value, code in known:
        if vars(owner).get(name) is not value or _code_of(value) is not code:
            _tell(f"{owner.__name__}.{name}")
    if importers and sys.meta_path[: len(importers)] != importers:
        _tell("sys.meta_path")


def _tell(name: str) -> None:
    if name not in tampered:
        tampered.append(name)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    _remember()


def _enter(code: "CodeType", offset: int) -> "Any":
    if code.co_filename.startswith(ROOT):
        seen.add((code.co_filename[len(ROOT) :], code.co_firstlineno))
    return sys.monitoring.DISABLE


def pytest_configure() -> None:
    if TRACING:
        tool = sys.monitoring.COVERAGE_ID
        sys.monitoring.use_tool_id(tool, "probe")
        sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, _enter)
        sys.monitoring.set_events(tool, sys.monitoring.events.PY_START)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    importers.extend(sys.meta_path)


def pytest_collectreport(report: "Any") -> None:
    _look()
    if report.failed:
        messages[report.nodeid] = _message_of(report)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item: "Any") -> "Any":
    _note(item, (yield))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: "Any") -> "Any":
    _note(item, (yield))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: "Any") -> "Any":
    _note(item, (yield))


def _note(item: "Any", result: "Any") -> None:
    """A TestCase's failures are collected in its item, and not raised."""
    if result.excinfo is not None or getattr(item, "_excinfo", None):
        raised.add(item.nodeid)
    _look()


def pytest_runtest_logstart(nodeid: str) -> None:
    seen.clear()
    if TRACING:
        sys.monitoring.restart_events()


def pytest_runtest_logreport(report: "Any") -> None:
    if report.outcome == "rerun":  # A plug-in runs it again, and this run of it does not count.
        outcomes.pop(report.nodeid, None)
        raised.discard(report.nodeid)
        return
    known = outcomes.get(report.nodeid, "passed")
    outcomes[report.nodeid] = report.outcome if known == "passed" else known
    if report.skipped and hasattr(report, "wasxfail"):
        expected_failures.add(report.nodeid)
    if report.failed and report.nodeid not in messages:
        messages[report.nodeid] = _message_of(report)


def _message_of(report: "Any") -> str:
    """The line that says what was raised; of an import, the last one that pytest marks."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).strip().splitlines()
    marked = [line[2:].strip() for line in reversed(lines) if line.startswith("E ") and crash is None]
    return (marked or lines or [""])[0][:MESSAGE_CHARACTERS]


def pytest_runtest_logfinish(nodeid: str) -> None:
    if TRACING:
        calls[nodeid] = [list(call) for call in sorted(seen)]


def _lines(config: "Any") -> "list[str]":
    """A line for each test, with status, name and order as in pytest's own summary: where two names begin alike up to
    a space, readers take the last."""
    words = {"passed": "PASSED", "failed": "FAILED", "skipped": "SKIPPED"}
    statuses = [
        ("XFAIL" if name in expected_failures else words.get(outcome, "ERROR"), config.cwd_relative_nodeid(name))
        for name, outcome in outcomes.items()
    ]
    return [f"{kind} {name}" for kind in STATUSES for status, name in statuses if status == kind]


def pytest_sessionfinish(session: "Any") -> None:
    _look()
    for name in raised:
        if outcomes.get(name) == "passed":
            _tell(name)
    if not OUT:
        return
    record = {"word": WORD, "outcomes": outcomes, "messages": messages, "calls": calls, "tampered": tampered}
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump({**record, "lines": _lines(session.config)}, file)
