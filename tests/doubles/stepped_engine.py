"""The scripted engine, held wherever a test wants: a generation waits at a token until it is released.

It goes on where it was when the proxy asks for the rest of an interrupted generation, as a real engine does.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from agentic.proxy import CallSampling, Chunk, ScriptedEngine, ScriptedReply
from agentic.proxy.errors import EngineError


@dataclass
class Plan:
    """What one generation gives, and where it waits."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    holds_at: int | None
    """Tokens after which it waits; None: it does not."""
    start: int = -1
    """Length of its first prompt."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    breaks: bool = False
    """Whether it fails instead of going on."""


class SteppedEngine(ScriptedEngine):
    """Gives what was planned for each request id, and nothing that was not."""

    def __init__(self) -> None:
        super().__init__(self._rest)
        self.holding: set[str] = set()
        """Requests that wait to be released."""
        self._plans: dict[str, Plan] = {}

    def plan(self, request_id: str, plan: Plan) -> None:
        """What the next request of this id gets."""
        self._plans[request_id] = plan

    def release(self, request_id: str) -> None:
        """Let it go on to its end."""
        self._plans[request_id].released.set()

    def break_off(self, request_id: str) -> None:
        """Let it fail where it waits."""
        self._plans[request_id].breaks = True
        self.release(request_id)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        """Play the plan from where the prompt ends."""
        plan = self._plans[request_id]
        if plan.start < 0:
            plan.start = len(prompt_ids)
        given = len(prompt_ids) - plan.start
        async with aclosing(super().generate(prompt_ids, sampling, request_id)) as chunks:
            async for chunk in chunks:
                if given == plan.holds_at and not plan.released.is_set():
                    await self._hold(request_id, plan)
                given += len(chunk.ids)
                yield chunk

    async def _hold(self, request_id: str, plan: Plan) -> None:
        self.holding.add(request_id)
        try:
            await plan.released.wait()
            if plan.breaks:
                raise EngineError("the server is gone")
        finally:
            self.holding.discard(request_id)

    def _rest(self, prompt_ids: Sequence[int], _sampling: CallSampling, request_id: str) -> ScriptedReply:
        plan = self._plans[request_id]
        given = len(prompt_ids) - plan.start
        first = 0 if plan.holds_at is None else max(plan.holds_at - given, 0)
        return ScriptedReply(plan.ids[given:], plan.logprobs[given:], chunk_sizes=(first,) if first else ())
