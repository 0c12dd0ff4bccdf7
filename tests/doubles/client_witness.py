"""An engine in front of another that notes what really went in and came out, for checks that ask nobody else."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from client_oracle import Ids

from agentic.proxy import CallSampling
from agentic.proxy.engines.base import Chunk, Engine


@dataclass
class WitnessEngine:
    """Passes calls on to an engine and notes what went in and what came out."""

    engine: Engine
    prompts: list[Ids] = field(default_factory=list)
    sampled: list[Ids] = field(default_factory=list)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        """The engine's own chunks."""
        number = len(self.prompts)
        self.prompts.append(tuple(prompt_ids))
        self.sampled.append(())
        async for chunk in self.engine.generate(prompt_ids, sampling, request_id):
            self.sampled[number] += tuple(chunk.ids)
            yield chunk

    async def abort(self, request_id: str) -> Chunk | None:
        """Pass it on."""
        return await self.engine.abort(request_id)

    def use_version(self, version: int) -> None:
        """Pass it on."""
        self.engine.use_version(version)

    async def close(self) -> None:
        """Pass it on."""
        await self.engine.close()
