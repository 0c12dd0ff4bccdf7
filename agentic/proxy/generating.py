"""One call's generation while it runs: what the engine gave so far, and why it ends.

A generation may take several attempts: when sampling is paused (new weights), or the engine says that it was
interrupted, the rest is asked for with the tokens so far as part of the prompt, so no token is lost and each carries
the version that sampled it (invariant 6). Readers follow a Draft at their own pace and never hold the engine up; a
Draft holds at most the call's `max_tokens`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from .engines.base import Chunk, Engine, Finish
from .errors import (
    ContextOverflow,
    EngineError,
    EngineRefused,
    GenerationFailed,
    InvalidRequest,
    RequestRefused,
    release_frames,
)
from .events import Committed
from .graph import Plan
from .models import CallSampling

logger = logging.getLogger(__name__)

FRUITLESS_ATTEMPTS = 3
"""Attempts in a row that an engine may give up without a token before the generation fails."""


class Gate:
    """Whether sampling may go on; closed while weights change."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        """Whether nothing is paused."""
        return self._open.is_set()

    def open(self) -> None:
        """Let everybody go on."""
        self._open.set()

    def close(self) -> None:
        """Let nobody start."""
        self._open.clear()

    async def wait(self) -> None:
        """Until it is open."""
        await self._open.wait()


class Draft:
    """What a generation has given so far; grows until it is closed."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float | None] = []
        self.versions: list[int] = []
        self.finish: Finish | None = None
        self.stop_reason: int | str | None = None
        self.is_closed = False
        self._grown = asyncio.Event()

    def add(self, chunk: Chunk) -> None:
        """Take in what came, and wake those who follow."""
        self.ids.extend(chunk.ids)
        self.logprobs.extend(chunk.logprobs)
        self.versions.extend([chunk.version] * len(chunk.ids))
        self.finish, self.stop_reason = chunk.finish, chunk.stop_reason
        self._wake()

    def close(self) -> None:
        """Nothing comes any more."""
        self.is_closed = True
        self._wake()

    async def wait_for_more(self, seen: int) -> None:
        """Until there are more than `seen` tokens, or never will be."""
        while len(self.ids) <= seen and not self.is_closed:
            await self._grown.wait()

    def committed(self, call: int, plan: Plan, at: float, is_delivered: bool, cut: str | None) -> Committed:
        """The record of what came: a whole reply, or the rest of a generation that was cut."""
        return Committed(
            call=call,
            at=at,
            anchor=plan.anchor,
            context=plan.context,
            first_prompt=plan.first_prompt,
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            finish=self.finish or "abort",
            stop_reason=self.stop_reason,
            delivered=is_delivered and cut is None,
            answered=cut is None,
            state_key=None,
            verbatim=None,
            cut=cut,
        )

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()


class Cut(Exception):
    """Why a generation ends without a whole reply: the word for the record and the error for the client."""

    def __init__(self, word: str, refusal: RequestRefused) -> None:
        super().__init__(str(refusal))
        self.word = word
        self.refusal = refusal


class Generating:
    """Runs one generation, over interruptions, until it is whole or cut."""

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: CallSampling,
        timeout_seconds: float,
    ) -> None:
        self.draft = Draft()
        self._engine = engine
        self._gate = gate
        self._request_id = request_id
        self.prompt_ids = prompt_ids
        self._sampling = sampling
        self._timeout_seconds = timeout_seconds
        self._left_seconds = timeout_seconds
        self._is_sampling = False
        self._is_aborting = False
        self._stopped: Cut | None = None
        self._attempt: asyncio.Task[None] | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end, so that nobody gets a whole reply of it."""
        return self._stopped is not None

    def stop(self, cut: Cut) -> None:
        """End it; what came so far stays in the draft. The first reason counts."""
        if self._stopped is None:
            self._stopped = cut
            self._cancel_attempt()

    async def interrupt(self) -> bool:
        """Stop sampling until the gate is open again; says whether anything was sampled. The engine is told."""
        attempt, was_sampling = self._attempt, self._is_sampling
        if attempt is None or not self._cancel_attempt():
            return False
        await asyncio.wait({attempt})
        return was_sampling

    async def run(self) -> Cut | None:
        """Fill the draft; gives why there is no whole reply, or None. Never raises for what an engine does."""
        try:
            return await self._run()
        finally:
            self._cancel_attempt()
            self.draft.close()

    async def _run(self) -> Cut | None:
        fruitless = 0
        while self._stopped is None:
            before = len(self.draft.ids)
            failure = await self._try()
            if self._stopped is not None or failure is not None:
                return self._stopped or failure
            if self.draft.finish in ("stop", "length"):
                return None
            if len(self.draft.ids) >= self._sampling.max_tokens:
                self.draft.finish = "length"  # interrupted after its last token
                return None
            fruitless = 0 if len(self.draft.ids) > before or not self._gate.is_open else fruitless + 1
            if fruitless >= FRUITLESS_ATTEMPTS:
                return self._engine_failed("the engine gave the generation up: ask again")
        return self._stopped

    async def _try(self) -> Cut | None:
        """One attempt; an interrupted one is no failure."""
        self._attempt = attempt = asyncio.create_task(self._consume())
        await asyncio.wait({attempt})
        self._attempt = None  # it keeps what it raised, whose frames know this object
        if attempt.cancelled():
            return None
        error = attempt.exception()
        if error is None:
            gave_up = self.draft.finish is None
            return self._engine_failed("the engine gave the generation up: ask again") if gave_up else None
        failure = self._failure(error)
        with contextlib.suppress(type(error)):
            attempt.result()  # a task lets go of the frames once its error was raised
        release_frames(error)
        return failure

    def _failure(self, error: BaseException) -> Cut:
        match error:
            case TimeoutError() if self._left_seconds <= 0:
                wanted = f"no reply within {self._timeout_seconds:g} s: raise request_timeout_seconds"
                return Cut("timeout", GenerationFailed(wanted))
            case EngineRefused():
                return Cut("engine" if error.is_the_sessions else "refused", _refusal(error))
            case EngineError():
                return self._engine_failed(f"the engine failed: {error}")
        logger.error("engine broke on %s", self._request_id, exc_info=error)
        return self._engine_failed(f"the engine failed: {error}")

    async def _consume(self) -> None:
        await self._gate.wait()
        self.draft.finish = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._left_seconds
        self._is_sampling = True
        try:
            async with asyncio.timeout_at(deadline):
                async for chunk in self._engine.generate(self._prompt(), self._rest(), self._request_id):
                    self.draft.add(chunk)
        except (asyncio.CancelledError, TimeoutError):
            await self._abort()
            raise
        finally:
            self._is_sampling = self._is_aborting = False
            self._left_seconds = deadline - loop.time()

    async def _abort(self) -> None:
        self._is_aborting = True
        rest = await self._engine.abort(self._request_id)
        if rest is not None:
            self.draft.add(rest)

    def _prompt(self) -> Sequence[int]:
        return [*self.prompt_ids, *self.draft.ids] if self.draft.ids else self.prompt_ids

    def _rest(self) -> CallSampling:
        if not self.draft.ids:
            return self._sampling
        return self._sampling.model_copy(update={"max_tokens": self._sampling.max_tokens - len(self.draft.ids)})

    def _cancel_attempt(self) -> bool:
        if self._attempt is None or self._attempt.done():
            return False
        # Once more would lose what the engine still gives of it.
        return self._is_aborting or self._attempt.cancelling() > 0 or self._attempt.cancel()

    @staticmethod
    def _engine_failed(message: str) -> Cut:
        return Cut("engine", GenerationFailed(message))


def _refusal(error: EngineRefused) -> RequestRefused:
    return ContextOverflow(str(error), "messages") if error.is_context_overflow else InvalidRequest(str(error))
