"""Grades one generated task; copied into its `tests/` and run by `tests/test.sh`, never imported by this project.

usage: check.py MODULE LOGS

The child process imports the module and answers `calls.json` with the `repr` of each result; the parent compares with
`expected.json`. The module is hostile for all we know, hence the order of things:

1. the expected values are opened by descriptor, unlinked, and read only after the child is gone; both processes refuse
   to be looked into by others of the same user (not dumpable), and the child closes the descriptor before the import;
2. the child's standard output is not the answer channel, and its exit, signals or silence only mean a reward of 0;
3. orphans come back to the parent, which kills all of its descendants before it writes;
4. the reward is written last, by rename, and `reward.json`, which Harbor reads first, is that very file.

What it cannot stop: a policy that replaced the interpreter itself. Grading in a separate sandbox does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

# Imports are paid for in every trial, and pathlib costs more than all others together.
# ruff: noqa: PTH100, PTH103, PTH105, PTH108, PTH112, PTH114, PTH118, PTH120, PTH123
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECONDS = 5.0
MOST_BYTES = 1 << 20
SUBREAPER, NOT_DUMPABLE = 36, 4


def guard_process() -> None:
    """Orphans are ours to end, and nobody of the same user may read our memory or descriptors."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    libc.prctl(NOT_DUMPABLE, 0, 0, 0, 0)


def answer_calls(module: str, calls: list[list[Any]], answers: int) -> None:
    """In the child: import, call, print; whatever happens here can only lose the reward."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    with open(module, encoding="utf-8") as file:
        code = compile(file.read(), "mod.py", "exec")
    scope: dict[str, Any] = {"__name__": "mod"}
    exec(code, scope)
    results = []
    for name, arguments in calls:
        try:
            results.append(repr(scope[name](*arguments)))
        except Exception as error:  # noqa: BLE001 - an error is a result like any other here
            results.append(type(error).__name__)
    os.write(answers, json.dumps(results).encode())


def start_child(module: str, calls: list[list[Any]], secret: int) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.close(secret)
            os.close(reading)
            answer_calls(module, calls, writing)
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def read_answers(reading: int) -> list[Any]:
    """Until the channel closes, the time is up, or too much came."""
    import select

    data, end = b"", time.monotonic() + SECONDS
    while len(data) < MOST_BYTES and select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        chunk = os.read(reading, 65536)
        if not chunk:
            break
        data += chunk
    try:
        answers = json.loads(data)
    except ValueError:
        return []
    return answers if isinstance(answers, list) else []


def end_descendants(child: int) -> None:
    """Kill children until none is left; the orphans of each round become the children of the next."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for pid in list_children() or [child]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def list_children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel without this file: the child alone can be named
        return []


def write_reward(logs: str, reward: int) -> None:
    os.makedirs(logs, exist_ok=True)
    for name in ("reward.txt", "reward.json"):
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
    module, logs = sys.argv[1:3]
    tests = os.path.dirname(os.path.abspath(__file__))
    guard_process()
    secret = os.open(os.path.join(tests, "expected.json"), os.O_RDONLY)
    os.unlink(os.path.join(tests, "expected.json"))
    with open(os.path.join(tests, "calls.json"), encoding="utf-8") as file:
        calls = json.load(file)
    child, reading = start_child(module, calls, secret)
    answers = read_answers(reading)
    end_descendants(child)
    with open(secret, encoding="utf-8") as file:
        expected = json.load(file)
    write_reward(logs, int(bool(expected) and answers == expected))


if __name__ == "__main__":
    main()
