"""The double of a sandbox's environment, with what may hinder grading: waiting, small answers, limits, a broken way in.

Fakes nothing else; see `process_environment.py`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from process_environment import ProcessEnvironment

from agentic.sandbox.base import ExecResult
from agentic.sandbox.errors import SandboxExhaustedError

KEPT_OUT = b"kept out"
"""What does not get in by a command's input."""


class HinderedEnvironment(ProcessEnvironment):
    """One trial's folder."""

    def __init__(
        self,
        *args: Any,
        renew_seconds: float = 0.0,
        exhausted_by: str = "",
        agents_answer_bytes: int | None = None,
        answer_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._renew_seconds = renew_seconds
        self._exhausted_by = exhausted_by
        self._agents_answer_bytes = agents_answer_bytes
        self._answer_bytes = answer_bytes
        super().__init__(*args, **kwargs)

    async def renew(self) -> None:
        """Later; and then answers are as long as in any fresh sandbox."""
        await asyncio.sleep(self._renew_seconds)
        await super().renew()
        self._agents_answer_bytes = None

    async def exec(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """The tests take too much memory where this file lies."""
        if self._exhausted_by and "reward.txt" in command and (self._root / "testbed" / self._exhausted_by).exists():
            raise SandboxExhaustedError("over its memory")
        return await super().exec(command, *args, **kwargs)

    async def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float | None = None
    ) -> ExecResult:
        """Bounded answers; some input does not arrive."""
        if KEPT_OUT in stdin:
            return ExecResult(2, b"", b"tar: cannot be written")
        result = await super().run(command, stdin=stdin, timeout_seconds=timeout_seconds)
        limit = self._agents_answer_bytes or self._answer_bytes
        if limit is None or len(result.stdout) <= limit:
            return result
        return replace(result, stdout=result.stdout[:limit], truncated=True)
