"""How trials share an event loop: what a paced coroutine sees, and how long it holds the loop."""

import asyncio
import contextlib
import time
from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from sleeping_sandboxes import IN_PLACE, SleepingProvider, scope_of

from agentic.rollout.pacing import Pacer, rare_full_collections
from agentic.rollout.trial import EnvironmentSpec, TrialRunner


def work(seconds):
    """Keeps the processor busy."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@contextlib.asynccontextmanager
async def longest_turn():
    """Collects how long the loop was held, in processor time: other processes of the machine do not count."""
    turns = []

    async def watch():
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            turns.append(now - before)
            before = now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    turns.clear()
    try:
        yield turns
    finally:
        watching.cancel()


async def crowd(run, clock, count, steps):
    """Coroutines that are all released at the same moment, and then each work in steps of two of the clock's seconds.

    Returns their results, the order in which they ended, and the most seconds that one turn of the loop took.
    """
    gate, order, turns = asyncio.Event(), [], []

    async def one(number):
        await gate.wait()
        for _ in range(steps):
            clock.now += 2
            await asyncio.sleep(0)
        order.append(number)
        return number

    async def watch():
        while True:
            before = clock.now
            await asyncio.sleep(0)
            turns.append(clock.now - before)

    tasks = [asyncio.create_task(run(one(number))) for number in range(count)]
    await asyncio.sleep(0.01)
    watching = asyncio.create_task(watch())
    gate.set()
    results = await asyncio.gather(*tasks)
    watching.cancel()
    return results, order, max(turns)


async def test_a_crowd_that_is_released_at_once_holds_the_loop_for_a_slice_at_a_time():
    clock = SimpleNamespace(now=0)
    results, order, paced = await crowd(Pacer(10, lambda: clock.now).run, clock, count=100, steps=3)
    assert results == list(range(100))
    assert max(abs(number - place) for place, number in enumerate(order)) <= 10, "what began first ends first"
    assert paced == 10
    _, _, unpaced = await crowd(lambda coroutine: coroutine, clock, count=100, steps=3)
    assert unpaced == 200, "what the pacer is for"


async def test_what_began_earlier_has_asked_its_model_before_all_others_have_begun():
    clock, steps = SimpleNamespace(now=0), []

    async def one(number):
        for step in ("made", "asked"):
            clock.now += 2
            steps.append((step, number))
            await asyncio.sleep(0)

    pacer = Pacer(10, lambda: clock.now)
    await asyncio.gather(*(pacer.run(one(number)) for number in range(100)))
    waited = [steps.index(("asked", number)) - steps.index(("made", number)) for number in range(100)]
    assert max(waited) <= 20


async def test_results_errors_and_context_pass_through():
    place = ContextVar("place", default="outside")

    async def inner():
        place.set("inside")
        await asyncio.sleep(0)
        return place.get()

    async def fails():
        await asyncio.sleep(0)
        raise KeyError("why")

    pacer = Pacer()
    assert await pacer.run(inner()) == "inside"
    with pytest.raises(KeyError, match="why"):
        await pacer.run(fails())


async def test_cancelling_reaches_the_work_also_while_it_waits_its_turn_and_cleanup_may_wait():
    pacer, seen, begun = Pacer(0.002), [], asyncio.Barrier(51)

    async def one():
        try:
            await begun.wait()
            while True:
                work(0.0005)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            seen.append("cleaned up")
            raise

    tasks = [asyncio.create_task(pacer.run(one())) for _ in range(50)]
    await begun.wait()  # What has not begun has nothing to clean up.
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 50
    assert seen == ["cleaned up"] * 50


async def test_a_timeout_inside_ends_what_it_holds_and_no_more():
    async def one():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.sleep(10)
        return "went on"

    pacer = Pacer()
    assert await asyncio.gather(*(pacer.run(one()) for _ in range(20))) == ["went on"] * 20


async def test_work_that_nobody_awaits_any_more_is_closed():
    closed = []

    async def one():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append(True)

    paced = Pacer().run(one())
    paced.send(None)
    paced.close()
    assert closed == [True]


@pytest.mark.speed
@pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")
async def test_many_trials_that_go_on_at_the_same_moment_never_hold_the_loop_for_a_tenth_of_a_second(
    trial_for, task_dir
):
    (task_dir / "task.toml").write_text((task_dir / "task.toml").read_text() + IN_PLACE)
    provider = SleepingProvider()
    runner = TrialRunner(200, scope_of(provider))

    def request(name):
        return trial_for("true", "true", trial_id=name, keep="none", environment=EnvironmentSpec(), deadline_seconds=50)

    with rare_full_collections():
        async with longest_turn() as turns:
            await runner.run(request("first"))
            imports = max(turns)
        provider.gate.clear()
        async with longest_turn() as turns:
            running = [asyncio.create_task(runner.run(request(f"t{number}"))) for number in range(200)]
            while provider.live < 200:
                await asyncio.sleep(0.02)
            provider.gate.set()
            results = await asyncio.gather(*running)
            await asyncio.sleep(0.01)
    assert [result.facts.rewards for result in results] == [{"reward": 1.0}] * 200
    assert provider.live == 0
    assert max(turns) < 0.1
    assert imports < 0.15, "Harbor is imported in a thread"
