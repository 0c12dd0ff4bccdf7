"""Random agents against the real server: edits, branches, repeats, retries, hang-ups, stripped thinking.

Every generation has ids of its own, so what comes back says which generation it is. After each conversation the sealed
session has to satisfy the invariants of docs/architecture.md; the failing example and the graph are printed.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_rig import Rig, a_spec, ids_of, running, says, text_of, until, user
from proxy_tokens import DROPS_THINKING_TEMPLATE, SMOLLM2_TEMPLATE, TINY_TEMPLATE, write_model_folder

from agentic.proxy import CallSampling, Sampling, ScriptedReply, SealedSession, SessionHandle

DELAY_SECONDS = 0.004
MOVES = ("say", "say", "say", "branch", "repeat", "key retry", "hang up", "hang up and retry", "short")

moves = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 5), st.booleans()), min_size=1, max_size=9)


def thinking(_prompt: Any, _sampling: CallSampling, request_id: str) -> ScriptedReply:
    number = int(request_id.rpartition("/")[2])
    text = f"{number:03d}<think>why</think>so {number}"  # the number first, so that a cut turn has it as well
    return says(text, version=number, delay_seconds=DELAY_SECONDS, chunk_tokens=12)


class Agent:
    """Plays moves on one session and remembers which generations it received."""

    def __init__(self, rig: Rig, handle: SessionHandle) -> None:
        self.rig = rig
        self.handle = handle
        self.history: list[dict[str, Any]] = [user("start")]
        self.received: set[int] = set()
        self.abandoned: list[list[dict[str, Any]]] = []
        self.last_body: list[dict[str, Any]] = []
        self.requests = 0

    async def graph(self) -> str:
        return await self.rig.server.describe(self.handle.session_id)

    async def play(self, move: str, number: int, strips: bool) -> None:
        match move:
            case "branch":
                turns = [n for n, message in enumerate(self.history) if message["role"] == "user"]
                self.history = [*self.history[: turns[number % len(turns)]], user(f"edit {number}")]
                await self._ask(strips)
            case "repeat":
                self.history = list(self.last_body or self.history)
                await self._ask(strips)
            case "key retry":
                key = {"Idempotency-Key": f"k{self.requests}"}
                first = await self._ask(strips, headers=key)
                again = await self.rig.ask(self.handle, self.last_body, headers=key)
                assert again.body == first.body
            case "hang up" | "hang up and retry":
                await self._hang_up(retries="retry" in move)
            case "short":
                await self._ask(strips, max_tokens=5)
            case _:
                await self._ask(strips)

    async def _ask(self, strips: bool, **fields: Any) -> Any:
        self.last_body = list(self.history)
        self.requests += 1
        answer = await self.rig.ask(self.handle, self.last_body, **fields)
        assert answer.status == 200, answer.body
        self._keep(answer, strips)
        return answer

    def _keep(self, answer: Any, strips: bool) -> None:
        if self.last_body in self.abandoned:  # the same body again is the retry of what was hung up on
            self.abandoned.remove(self.last_body)
        usage = answer.body["usage"]
        prompts = [call.prompt_ids for call in self.rig.engine.received]
        assert usage["prompt_tokens"] in {len(ids) for ids in prompts}
        self.received.add(int(answer.body["id"].rpartition("-")[2], 16))
        text = answer.text.rpartition("</think>")[2] if strips else answer.text
        self.history = [*self.last_body, {"role": "assistant", "content": text}, user(f"then {self.requests}")]

    async def _hang_up(self, retries: bool) -> None:
        # A body of its own, so that nothing else of this agent counts as its retry.
        self.requests += 1
        self.last_body = [*self.history[:-1], user(f"hang up {self.requests}")]
        started = len(self.rig.engine.received)
        await self.rig.hang_up(self.handle, self.last_body)
        if retries:
            answer = await self.rig.ask(self.handle, self.last_body)
            assert answer.status == 200
            assert len(self.rig.engine.received) == started + 1, "a retry sampled again"
            self._keep(answer, strips=False)
        else:
            self.abandoned.append(self.last_body)
            async with asyncio.timeout(5):
                while (await self.graph()).count("undelivered") != len(self.abandoned):
                    await asyncio.sleep(0.001)


def check(rig: Rig, sealed: SealedSession, graph: str) -> None:
    assert sealed.complete, sealed.incomplete_reason
    assert sealed.calls == len(rig.engine.received)
    wholes = [tuple(t.prompt_ids + t.response_ids) for t in sealed.trajectories]
    for call in rig.engine.received:  # invariant 1: what was sent is a beginning of a path
        assert any(whole[: len(call.prompt_ids)] == call.prompt_ids for whole in wholes), graph
    trained: list[str] = []
    for t in sealed.trajectories:  # invariants 2 and 6
        assert len(t.response_ids) == len(t.response_mask) == len(t.response_logprobs) == len(t.versions)
        stretch: list[int] = []
        for token, mask in [*zip(t.response_ids, t.response_mask, strict=True), (0, 0)]:
            if mask:
                stretch.append(token)
            elif stretch:
                trained.append(text_of(stretch))
                stretch = []
    # invariant 3: each generation is trained at most once, and exactly the received ones are
    assert len(trained) == len(set(trained)), graph
    assert sum(len(ids_of(text)) for text in trained) + sealed.undelivered_tokens == sealed.sampled_tokens, graph


async def converse(template: str, plan: list[tuple[str, int, bool]]) -> None:
    with TemporaryDirectory() as folder:
        model = write_model_folder(Path(folder), template)
        async with running(model, thinking) as rig:
            handle = await rig.server.open(a_spec(sampling=Sampling(temperature=1, max_tokens=60)))
            agent = Agent(rig, handle)
            for move, number, strips in plan:
                await agent.play(move, number, strips)
            graph = await rig.server.describe("rollout-1")
            sealed = await rig.server.seal("rollout-1")
            check(rig, sealed, graph)
            assert len(agent.received) == sealed.calls - len(agent.abandoned), graph
            assert (sealed.undelivered_tokens > 0) == bool(agent.abandoned), graph


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([TINY_TEMPLATE, SMOLLM2_TEMPLATE, DROPS_THINKING_TEMPLATE]), moves)
def test_whatever_an_agent_does_each_received_token_trains_exactly_once(
    template: str, plan: list[tuple[str, int, bool]]
) -> None:
    asyncio.run(converse(template, plan))


async def test_hundreds_of_sessions_at_once_stay_apart(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        handles = [await rig.server.open(a_spec(f"s{n}")) for n in range(300)]
        gate = asyncio.Semaphore(64)

        async def roll(handle: SessionHandle) -> str:
            async with gate:
                first = await rig.ask(handle, [user("hi")])
                second = await rig.ask(handle, [user("hi"), first.message, user(handle.session_id)])
                return second.text

        texts = await asyncio.gather(*(roll(handle) for handle in handles))
        assert texts == [f"answer s{n}/1" for n in range(300)]
        sealed = await rig.server.seal("s7")
        assert "s7" in text_of(sealed.trajectories[0].response_ids)
        await until(lambda: len(rig.engine.received) == 600)
