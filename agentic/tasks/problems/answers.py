"""Whether an answer is right, whatever form it has: plain ones here, algebra by math-verify in a process of its own.

What a policy writes may take an algebra system for ever (`9^{9^{9^9}}`), and math-verify's own time limit is a signal,
which only a main thread gets and no long multiplication hears. So a child process compares, with its limit, and one
that does not answer in time is killed; the answer then counts as wrong. Plain numbers never get there.

Run as a program it is that child: a JSON array of two texts a line in, `true` or `false` a line out.
"""

import asyncio
import contextlib
import json
import sys
from typing import Any

from agentic.tasks.problems.plain import LONGEST_ANSWER, is_same, plain_number

ANSWER_SECONDS = 10.0
START_SECONDS = 60.0
"""The first answer includes the import of an algebra system."""
_PARSING_SECONDS = 5


class AnswerChecker:
    """Compares answers; keeps one child, started when it is first needed."""

    def __init__(self, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._answer_seconds = answer_seconds
        self._child: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def is_correct(self, answer: str | None, expected: str) -> bool:
        """Whether an answer (what stood in the box; None: there was none) means the expected one."""
        if answer is None or not answer or len(answer) > LONGEST_ANSWER:
            return False
        if is_same(answer, expected):
            return True
        if plain_number(answer) is not None and plain_number(expected) is not None:
            return False
        async with self._lock:
            return await self._ask(answer, expected)

    async def _ask(self, answer: str, expected: str) -> bool:
        seconds = self._answer_seconds
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "agentic.tasks.problems.answers",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            seconds += START_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await _exchange(self._child, answer, expected)
        except (TimeoutError, OSError, ValueError):
            await self.close()
            return False

    async def close(self) -> None:
        """End the child. May be repeated; the next comparison starts another."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            await self._child.wait()
            self._child = None


async def _exchange(child: asyncio.subprocess.Process, answer: str, expected: str) -> bool:
    if child.stdin is None or child.stdout is None:
        raise ValueError("the child has no pipes")
    child.stdin.write(json.dumps([answer, expected]).encode() + b"\n")
    await child.stdin.drain()
    return bool(json.loads(await child.stdout.readline()))


def compare(answer: str, expected: str) -> bool:
    """By math-verify; only in a process that may be killed."""
    from math_verify import parse, verify

    def parsed(text: str) -> Any:
        return parse(f"\\boxed{{{text}}}", parsing_timeout=_PARSING_SECONDS)

    return bool(verify(parsed(expected), parsed(answer), timeout_seconds=_PARSING_SECONDS))


def main() -> int:
    """Compare until the input ends."""
    for line in sys.stdin:
        answer, expected = json.loads(line)
        sys.stdout.write(json.dumps(compare(answer, expected)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
