"""Grades a task by its hidden unittest file; copied into the task's `tests/` as `judge.py`, never imported here.

usage: judge.py TEST_FILE LOGS

The code under test runs in the tests' own process, so that an exit code proves nothing. Hence:

1. this process reads from the test file's source which tests there are, and only a report that says of each of them,
   and of no other, that it passed, earns the reward. A child runs them and sends the report with a word that only the
   two of them know, through a pipe. A child that exits early, hangs, or dies has sent none;
2. before it reports, the child looks whether unittest, the built-in functions and the import system are still what they
   were before the code under test was imported, and whether each test class is what the source says: its bases, its
   members, and the very code that was compiled before that import;
3. orphans come back to this process, which ends all of its descendants before it writes;
4. the reward is written last, by rename.

What it cannot stop: code that reads this program's memory from within the child, and forges the report on purpose; and
code that changes unittest while a test runs and changes it back before the run is over.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
import time
import types
import unittest
import unittest.case
import unittest.loader
import unittest.result
import unittest.runner
import unittest.suite


def guard_process() -> None:
    """Orphans are ours to end, and nobody of the same user may read our memory or descriptors."""
    import ctypes

    subreaper, dumpable = 36, 4
    libc = ctypes.CDLL(None)
    libc.prctl(subreaper, 1, 0, 0, 0)
    libc.prctl(dumpable, 0, 0, 0, 0)


def end_descendants(child: int, seconds: float) -> None:
    """Kill children until none is left; the orphans of each round become the children of the next."""
    import signal
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for pid in list_children() or [child]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not reap():
            return
        time.sleep(0.002)


def reap() -> bool:
    """Whether there are children still."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def list_children() -> list[int]:
    """Of this process; none on a kernel without this file, where the child alone can be named."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return []


# Imports are paid for in every trial, and pathlib costs more than most others together.
# ruff: noqa: PTH103, PTH105, PTH112, PTH114, PTH118, PTH123
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECONDS = 40.0
MOST_BYTES = 1 << 20
MODULE = "hidden_tests"
IMPLICIT = {
    "_classSetupFailed",
    "_class_cleanups",
    "tearDown_exceptions",
    "__module__",
    "__qualname__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__firstlineno__",
    "__static_attributes__",
}
WATCHED = (unittest.case, unittest.loader, unittest.result, unittest.runner, unittest.suite, unittest, builtins)


def expected_tests(source: str) -> set[str]:
    """`Class.test` of each test in the file, from its text alone."""
    return {
        f"{kind.name}.{function.name}"
        for kind in ast.parse(source).body
        if isinstance(kind, ast.ClassDef) and kind.bases
        for function in kind.body
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test")
    }


def look(places: tuple[Any, ...]) -> list[tuple[str, int, int]]:
    """What is callable in these modules and classes, by identity, and the code of each function."""
    found = [(f"import {name}", id(part), 0) for name in ("meta_path", "path_hooks") for part in getattr(sys, name)]
    found += [("trace", id(sys.gettrace()), 0), ("profile", id(sys.getprofile()), 0)]
    for place in places:
        members = [(place, name, value) for name, value in vars(place).items()]
        members += [
            (kind, name, value)
            for _, _, kind in members
            if isinstance(kind, type) and kind.__module__.partition(".")[0] in ("unittest", MODULE)
            for name, value in vars(kind).items()
        ]
        for owner, name, value in members:
            function = getattr(value, "__func__", value)
            if callable(function) or isinstance(value, (property, classmethod, staticmethod)):
                found.append((f"{owner.__name__}.{name}", id(value), id(getattr(function, "__code__", None))))
    return sorted(found)


def differences(module: types.ModuleType, code: types.CodeType, classes: set[str]) -> list[str]:
    """What of the tests is not as their source says."""
    space, compiled = vars(module), codes_in(code)
    found = [name for name in space if not (name.startswith("__") or name in code.co_names)]
    found += [] if space["__builtins__"] is vars(builtins) else ["__builtins__"]
    found += [] if space.get("unittest", unittest) is unittest else ["unittest"]
    for name, inner in compiled.items():
        value = space.get(name)
        if name not in classes:
            found += [] if getattr(value, "__code__", None) in (inner, None) else [name]
        elif type(value) is not type or value.__bases__ != (unittest.TestCase,):
            found.append(f"{name}'s bases")
        else:
            found += [f"{name}.{member}" for member in changed_members(value, inner)]
    return found


def changed_members(kind: type, body: types.CodeType) -> list[str]:
    compiled = codes_in(body)
    members = {name: value for name, value in vars(kind).items() if name not in IMPLICIT}
    return [name for name in members if name not in body.co_names] + [
        name for name, code in compiled.items() if getattr(members.get(name), "__code__", None) is not code
    ]


def codes_in(code: types.CodeType) -> dict[str, types.CodeType]:
    """The functions and classes that a module or class defines, by name; a function made of one has this very code."""
    return {
        part.co_name: part for part in code.co_consts if isinstance(part, types.CodeType) and part.co_name[0] != "<"
    }


class Recording(unittest.TextTestResult):
    """Which tests passed, their parts included."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.passed: set[str] = set()

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.add(name_of(test))


def name_of(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def run_tests(path: str, source: str) -> dict[str, Any]:
    """In the child: import, run, look again."""
    leave, before = os._exit, look(WATCHED)
    code, classes = compile(source, path, "exec"), {name.partition(".")[0] for name in expected_tests(source)}
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    exec(code, module.__dict__)
    if look(WATCHED) != before or os._exit is not leave or differences(module, code, classes):
        return {"tampered": "on import"}
    tests = look((module,))
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(resultclass=Recording, verbosity=1).run(suite)
    is_as_before = look(WATCHED) == before and look((module,)) == tests and not differences(module, code, classes)
    if not is_as_before or not isinstance(result, Recording):
        return {"tampered": "while the tests ran"}
    bad = {name_of(getattr(test, "test_case", test)) for test, _ in (*result.failures, *result.errors)}
    return {"passed": sorted(result.passed - bad)}


def start_child(path: str, source: str, word: str) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.close(reading)
            report = json.dumps({"word": word, **run_tests(path, source)}).encode()
            sys.stderr.flush()
            os.write(writing, report)
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def read_report(reading: int) -> dict[str, Any]:
    """Until the channel closes, the time is up, or too much came."""
    import select

    data, end = b"", time.monotonic() + SECONDS
    while len(data) < MOST_BYTES and select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        chunk = os.read(reading, 65536)
        if not chunk:
            break
        data += chunk
    try:
        report = json.loads(data)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}


def write_reward(logs: str, reward: int) -> None:
    os.makedirs(logs, exist_ok=True)
    for name in ("reward.json", "reward.txt"):
        path = os.path.join(logs, name)
        if os.path.isdir(path) and not os.path.islink(path):
            import shutil

            shutil.rmtree(path, ignore_errors=True)
        text = str(reward) if name == "reward.txt" else json.dumps({"reward": reward})
        partial = f"{path}.{os.getpid()}"
        with open(partial, "w", encoding="ascii") as file:
            file.write(text + "\n")
        os.replace(partial, path)


def main() -> None:
    path, logs = sys.argv[1:3]
    guard_process()
    with open(path, encoding="utf-8") as file:
        source = file.read()
    word = os.urandom(16).hex()
    child, reading = start_child(path, source, word)
    report = read_report(reading)
    end_descendants(child, SECONDS)
    expected = expected_tests(source)
    if "tampered" in report:
        sys.stderr.write(f"the tests or their runner were changed {report['tampered']}\n")
    is_solved = report.get("word") == word and bool(expected) and set(report.get("passed", ())) == expected
    write_reward(logs, int(is_solved))


if __name__ == "__main__":
    main()
