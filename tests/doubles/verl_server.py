"""verl's rollout server as a Ray actor, as far as verl's own client asks it: what it samples is scripted.

Faked are the engine and its weights: the ids 100, 101, ... until the limit, by the weights of the step that was told
last. As verl's server does, it ends what it samples when weights change, gives what it has with the step that sampled
it, and cannot be told to end one request.
"""

import asyncio
from typing import Any

from verl.workers.rollout.replica import TokenOutput

FIRST = 100


class ScriptedServer:
    """What runs in the actor."""

    def __init__(self, holds: dict[int, int]) -> None:
        """`holds`: after how many tokens which request waits, until weights change or it may go on."""
        self._holds = holds
        self._step = 0
        self._waiting: list[asyncio.Event] = []
        self.requests: list[tuple[int, int]] = []

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_media: None
    ) -> TokenOutput:
        """Sample until the limit or until the weights change."""
        step, number, limit = self._step, len(self.requests), sampling_params["max_tokens"]
        self.requests.append((len(prompt_ids), limit))
        count = limit
        if number in self._holds:
            self._waiting.append(asyncio.Event())
            await self._waiting[-1].wait()
            count = limit if self._step == step else self._holds[number]
        return TokenOutput(
            token_ids=[FIRST + place for place in range(count)],
            log_probs=[-(place + 1) / 64 for place in range(count)],
            stop_reason="completed" if count == limit else "aborted",
            extra_fields={"global_steps": step},
        )

    async def change_weights(self, step: int) -> None:
        """As verl's trainer does after a step."""
        self._step = step
        await self.go_on()

    async def go_on(self) -> None:
        """Let what waits be sampled to its end."""
        for waiting in self._waiting:
            waiting.set()

    async def waiting(self) -> int:
        """How many requests have waited or do."""
        return len(self._waiting)

    async def asked(self) -> list[tuple[int, int]]:
        """Each request's prompt length and limit."""
        return self.requests
