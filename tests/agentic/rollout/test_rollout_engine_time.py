"""The engine's time, session by session."""

import asyncio

from agentic.proxy import ScriptedEngine, ScriptedReply
from agentic.proxy.models import CallSampling
from agentic.rollout.engine_time import TimedEngine

SAMPLING = CallSampling(temperature=1.0, max_tokens=8)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


async def test_generations_add_up_for_their_session_and_are_told_once():
    clock = Clock()

    def reply(prompt_ids, sampling, request_id):
        clock.now += 2.0
        return ScriptedReply((1, 2, 3))

    engine = TimedEngine(ScriptedEngine(reply), clock)
    for request_id in ("a/1", "a/2", "b/1"):
        ids = [token async for chunk in engine.generate([7], SAMPLING, request_id) for token in chunk.ids]
        assert ids == [1, 2, 3]
    assert (engine.take("a"), engine.take("b"), engine.take("a"), engine.take("unknown")) == (4.0, 2.0, 0.0, 0.0)


async def test_a_generation_that_is_given_up_is_ended_in_the_engine_and_counts():
    ended = asyncio.Event()

    class Endless:
        async def generate(self, prompt_ids, sampling, request_id):
            try:
                await asyncio.sleep(3600)
                yield
            finally:
                ended.set()

    engine = TimedEngine(Endless())

    async def consume():
        async for _ in engine.generate([7], SAMPLING, "a/1"):
            pass

    consuming = asyncio.create_task(consume())
    await asyncio.sleep(0.05)
    consuming.cancel()
    await asyncio.wait({consuming})
    assert ended.is_set()
    assert engine.take("a") >= 0.04
