"""Whether an answer is right, whatever form it has: plain ones here, algebra by math-verify in a process of its own.

The one rule for all loops: verl's own ask it about the last reply, grading about the file that an agent left.

What a policy writes may take an algebra system for ever (`9^{9^{9^9}}`), and math-verify's own time limit is a signal,
which only a main thread gets and no long multiplication hears. So a child process compares, within limits on time and
memory, and one that does not answer in time is killed; the answer then counts as wrong. Plain numbers never get there.

Run as a program it is that child: a JSON array of two texts a line in, `true` or `false` a line out.
"""

import asyncio
import atexit
import functools
import importlib.util
import json
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentic.tasks.errors import DataError
from agentic.tasks.problems.plain import LONGEST_ANSWER, is_same, plain_number

ANSWER_SECONDS = 10.0
START_SECONDS = 60.0
"""The first answer includes the import of an algebra system."""
CHILD_BYTES = 2 << 30
"""Address space of the child: what it imports takes a tenth of it."""
_PARSING_SECONDS = 5


class AnswerChecker:
    """Compares answers, one after the other, for whichever event loop asks; keeps one child, started when needed."""

    def __init__(self, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._answer_seconds = answer_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "answers")

    async def is_correct(self, answer: str | None, expected: str) -> bool:
        """Whether an answer (what stood in the box; None: there was none) means the expected one.

        Raises:
            DataError: it takes algebra, and math-verify is not installed.
        """
        if answer is None or not answer or len(answer) > LONGEST_ANSWER:
            return False
        if is_same(answer, expected):
            return True
        if plain_number(answer) is not None and plain_number(expected) is not None:
            return False
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, answer, expected)

    async def close(self) -> None:
        """End the child. May be repeated; the next comparison starts another."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.end)

    def _ask(self, answer: str, expected: str) -> bool:
        seconds = self._answer_seconds
        if self._child is None or self._child.poll() is not None:
            self.end()
            self._child = _start()
            seconds += START_SECONDS
        limit = threading.Timer(seconds, self._child.kill)
        limit.start()
        try:
            return _exchange(self._child, answer, expected)
        except (OSError, ValueError):
            self.end()
            return False
        finally:
            limit.cancel()

    def end(self) -> None:
        """`close`, for who has no event loop any more."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


@functools.cache
def shared_checker() -> AnswerChecker:
    """The one of this process; its child ends with it."""
    checker = AnswerChecker()
    atexit.register(checker.end)
    return checker


def _start() -> subprocess.Popen[bytes]:
    if importlib.util.find_spec("math_verify") is None:
        raise DataError("math-verify is not installed, and this answer takes algebra to compare: run `make setup`")
    return subprocess.Popen(
        [sys.executable, "-m", "agentic.tasks.problems.answers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _exchange(child: subprocess.Popen[bytes], answer: str, expected: str) -> bool:
    if child.stdin is None or child.stdout is None:
        raise ValueError("the child has no pipes")
    child.stdin.write(json.dumps([answer, expected]).encode() + b"\n")
    child.stdin.flush()
    return bool(json.loads(child.stdout.readline()))


def compare(answer: str, expected: str) -> bool:
    """By math-verify; only in a process that may be killed."""
    from math_verify import parse, verify

    def parsed(text: str) -> Any:
        return parse(f"\\boxed{{{text}}}", parsing_timeout=_PARSING_SECONDS)

    return bool(verify(parsed(expected), parsed(answer), timeout_seconds=_PARSING_SECONDS))


def main() -> int:
    """Compare until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES, CHILD_BYTES))
    for line in sys.stdin:
        answer, expected = json.loads(line)
        sys.stdout.write(json.dumps(compare(answer, expected)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
