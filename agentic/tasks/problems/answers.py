"""Whether an answer is right, whatever form it has: plain ones here, algebra by math-verify in a process of its own.

The one rule for all loops: verl's own ask it about the last reply, grading about the file that an agent left.

What a policy writes may take an algebra system for ever (`9^{9^{9^9}}`), and math-verify's own time limit is a signal,
which only a main thread gets and no long multiplication hears. So a child process compares, within limits on time and
memory, and one that does not answer in time is killed; the answer then counts as wrong. Plain numbers never get there.

Run as a program it is that child: a line when it is ready, then a JSON array of two texts a line in, `true` or `false`
a line out.
"""

import asyncio
import atexit
import contextlib
import functools
import importlib.util
import json
import queue
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
"""For the import of an algebra system, and its first comparison."""
AT_ONCE = 4
"""Children of one process, each of which takes 200 MB."""
CHILD_BYTES = 2 << 30
"""Address space of the child: what it imports takes a tenth of it."""
_PARSING_SECONDS = 5


class AnswerChecker:
    """Compares answers for whichever event loop asks, a few at once, so that one which takes for ever holds up no other
    that is about as long as honest ones take. Children are started when needed, and kept."""

    def __init__(self, answer_seconds: float = ANSWER_SECONDS, at_once: int = AT_ONCE) -> None:
        self._answer_seconds = answer_seconds
        self._threads = ThreadPoolExecutor(at_once, "answers")
        self._children: set[_Child] = set()
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()

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
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, answer, expected)

    async def close(self) -> None:
        """End the children; what they compare counts as wrong. May be repeated; the next comparison starts another."""
        await asyncio.to_thread(self.end)

    def _ask(self, answer: str, expected: str) -> bool:
        child = self._ready()
        try:
            correct = child.is_correct(answer, expected, self._answer_seconds)
        except (OSError, ValueError):
            self._end(child)
            return False
        self._idle.put(child)
        return correct

    def _ready(self) -> "_Child":
        with contextlib.suppress(queue.Empty):
            while True:
                child = self._idle.get_nowait()
                if child.is_alive:
                    return child
                self._end(child)
        child = _Child()
        self._children.add(child)
        return child

    def _end(self, child: "_Child") -> None:
        child.end()
        self._children.discard(child)

    def end(self) -> None:
        """`close`, for who has no event loop any more."""
        for child in tuple(self._children):
            self._end(child)


class _Child:
    """A process that compares. Its start has a time of its own, and no comparison gets that."""

    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise DataError("math-verify is not installed, and this answer takes algebra to compare: run `make setup`")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentic.tasks.problems.answers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._is_ready = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def is_correct(self, answer: str, expected: str, seconds: float) -> bool:
        """Raises OSError or ValueError when there is no answer within that time; then the process is dead."""
        if not self._is_ready:
            self._said(START_SECONDS)
            self._is_ready = True
        if self._process.stdin is None:
            raise ValueError("the child has no pipes")
        self._process.stdin.write(json.dumps([answer, expected]).encode() + b"\n")
        self._process.stdin.flush()
        return self._said(seconds)

    def _said(self, seconds: float) -> bool:
        """The next line."""
        if self._process.stdout is None:
            raise ValueError("the child has no pipes")
        limit = threading.Timer(seconds, self._process.kill)
        limit.start()
        try:
            return bool(json.loads(self._process.stdout.readline()))
        finally:
            limit.cancel()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@functools.cache
def shared_checker() -> AnswerChecker:
    """The one of this process; its children end with it."""
    checker = AnswerChecker()
    atexit.register(checker.end)
    return checker


def compare(answer: str, expected: str) -> bool:
    """By math-verify; only in a process that may be killed."""
    from math_verify import parse, verify

    def parsed(text: str) -> Any:
        return parse(f"\\boxed{{{text}}}", parsing_timeout=_PARSING_SECONDS)

    return bool(verify(parsed(expected), parsed(answer), timeout_seconds=_PARSING_SECONDS))


def main() -> int:
    """Compare until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES, CHILD_BYTES))
    say(compare("x+1", "1+x"))  # The first comparison takes as long as a hundred others.
    for line in sys.stdin:
        answer, expected = json.loads(line)
        say(compare(answer, expected))
    return 0


def say(what: bool) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
