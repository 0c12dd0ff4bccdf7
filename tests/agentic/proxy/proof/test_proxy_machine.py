"""Whatever agents, trainers and crashes do, in whatever order: a state machine against an oracle.

Two sessions of one proxy are opened, asked by every API, whole and streamed, in parallel, retried in every way, forked,
edited and compacted; clients hang up; weights change in the middle; the process dies with its journals cut at any byte;
sessions are sealed, dropped, opened again, and expire. After every move the invariants of docs/architecture.md hold, as
far as they can be seen from outside: what the engine was sent, what the disk has, what clients heard, what is sealed.

`PROXY_EXAMPLES` says how many examples are tried: 500 in `make test`, 10,000 in `make proxy-nightly`.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from proxy_oracle import Asked, Generated, Turns, text_of
from proxy_proof import FOREVER_SECONDS, Held, Proof, check_sealed, reply_tokens
from proxy_speaking import Client, Heard, conversation_body, text_body

from agentic.proxy.errors import UnknownSession

EXAMPLES = int(os.environ.get("PROXY_EXAMPLES", "500"))
STEPS = 20

sessions = st.sampled_from(["a", "a", "a", "b"])
apis = st.sampled_from(["chat", "responses", "messages"])
words = st.sampled_from(["go on", "zq zq", "why?", "z", "q then"])
replies = st.sampled_from(["ok", "zq done", "<think>hm zq</think>fine", " padded zq \n", "zqzq<think>a</think> b"])
changes = st.sampled_from(["none", "none", "strip thinking", "strip blanks", "rewrite", "shorten", "compact"])
spots = st.integers(0, 5)
plans = st.lists(st.tuples(changes, words, replies), max_size=4)
RETRIES = ("left", "left", "key", "count", "count", "nothing")
"""What makes a request the same again: its client left before, its key, an SDK's count, nothing."""


class ProxyMachine(RuleBasedStateMachine):
    """Moves, each followed by the invariants. All lives of a part have one loop; each leaves it empty."""

    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="proxy-proof-"))
        self.asks = 0

    @initialize(has_grace=st.booleans())
    def begin(self, has_grace: bool) -> None:
        self.proof = Proof(self.folder, FOREVER_SECONDS if has_grace else 0)
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        await self.proof.start()
        await self._open_all()

    async def _open_all(self) -> None:
        for held in self.proof.sessions.values():
            key = held.handle.api_key if held.handle else None
            await self.proof.open(held)
            assert held.handle is not None
            assert key in (None, held.handle.api_key), "a key outlives a restart"

    @rule(
        name=sessions, api=apis, streamed=st.booleans(), spot=spots, change=changes, word=words, reply=replies,
        merged=st.booleans(), cap=st.sampled_from([None, None, None, 3]), has_key=st.booleans(),
        hold=st.sampled_from([None, None, 0, 2]), lacks=st.integers(0, 30).map(lambda n: n == 30),
    )  # fmt: skip
    def converse(self, name: str, spot: int, change: str, word: str, api: str, streamed: bool, **how: Any) -> None:
        held = self.proof.sessions[name]
        turns = self._next_turns(held, spot, change, word)
        body = conversation_body(api, turns, how["cap"], streamed)
        self.runner.run(self._ask(held, api, body, Asked(self._known(api, body), turns), **how))

    @precondition(lambda self: not self.proof.paused)
    @rule(
        name=sessions, api=apis, streamed=st.booleans(), spot=spots, plan=st.lists(st.tuples(changes, words, replies))
    )
    def talk(self, name: str, spot: int, api: str, streamed: bool, plan: list[tuple[str, str, str]]) -> None:
        """Several turns of one conversation, each answered."""
        held = self.proof.sessions[name]
        for change, word, reply in plan:
            turns = self._next_turns(held, spot, change, word)
            body = conversation_body(api, turns, None, streamed)
            self.runner.run(self._ask(held, api, body, Asked(self._known(api, body), turns), reply, merged=False))
            spot = 0

    @rule(name=sessions, spot=spots, word=words, reply=replies, merged=st.booleans(), streamed=st.booleans())
    def continue_by_id(self, name: str, spot: int, word: str, streamed: bool, **how: Any) -> None:
        held = self.proof.sessions[name]
        stored = [(reply_id, call) for reply_id, call in self._stored(held) if call.state == "answered"]
        if not stored:
            return
        reply_id, call = stored[spot % len(stored)]
        turns = (*call.turns_after, ("user", word))
        said = conversation_body("responses", [t for t in turns if t[0] == "system"] + [turns[-1]], None, streamed)
        body = said | {"previous_response_id": reply_id}
        self.runner.run(self._ask(held, "responses", body, Asked(self._known("responses", body), turns), **how))

    @rule(
        name=sessions, spot=spots, word=words, reply=replies, merged=st.booleans(), streamed=st.booleans(),
        hold=st.sampled_from([None, None, 1]), cap=st.sampled_from([None, 3]),
    )  # fmt: skip
    def complete_text(self, name: str, spot: int, word: str, streamed: bool, **how: Any) -> None:
        held = self.proof.sessions[name]
        ended = [c for c in held.oracle.calls if c.asked.text is not None and c.state == "answered"]
        texts = ["", *((c.asked.text or "") + text_of(c.tokens) for c in ended)]
        prompt = texts[spot % len(texts)] + f" {word}"
        body = text_body(prompt, how["cap"], streamed)
        asked = Asked(self._known("completions", body), text=prompt)
        self.runner.run(self._ask(held, "completions", body, asked, **how))

    @precondition(lambda self: self._some(lambda held: held.oracle.calls))
    @rule(name=sessions, spot=spots, reply=replies, merged=st.booleans(), way=st.sampled_from(RETRIES))
    def ask_the_same_again(self, name: str, spot: int, way: str, **how: Any) -> None:
        held = self.proof.sessions[name]
        calls = [c for c in held.oracle.calls if not c.waiting and not c.delivered] if way == "left" else []
        calls = [c for c in calls or held.oracle.calls if way != "key" or c.asked.key] or held.oracle.calls
        if not calls:
            return
        first = calls[-1 - spot % len(calls)].asked
        api, body = json.loads(first.body)
        if body.get("previous_response_id") and not self._is_stored(held, body["previous_response_id"]):
            return
        asked = Asked(first.body, first.turns, first.text, first.key if way == "key" else None, int(way == "count"))
        how["cap"] = body.get("max_tokens", body.get("max_output_tokens"))
        self.runner.run(self._ask(held, api, body, asked, **how))

    @precondition(lambda self: self._some(lambda held: any(call.asked.key for call in held.oracle.calls)))
    @rule(name=sessions, api=apis)
    def use_a_key_with_another_body(self, name: str, api: str) -> None:
        held = self.proof.sessions[name]
        used = [c.asked.key for c in held.oracle.calls if c.asked.key and c.state != "failed"]
        if used and held.handle is not None:
            key = {"Idempotency-Key": used[-1] or ""}
            assert self.runner.run(self._status(held.handle.base_url, held.handle.api_key, api, key)) == 400

    @precondition(lambda self: not self.proof.paused and self._some(Held.running))
    @rule(name=sessions, spot=spots, breaks=st.sampled_from([False, False, False, True]))
    def let_a_generation_end(self, name: str, spot: int, breaks: bool) -> None:
        held = self.proof.sessions[name]
        running = held.running()
        if not running:
            return
        call = running[spot % len(running)]
        ending = self.proof.break_off(held, call) if breaks else self.proof.release(held, call)
        for _, heard in self.runner.run(ending):
            if breaks:
                assert not heard.is_whole
            else:
                self._check_reply(call, heard)

    @precondition(lambda self: self._some(lambda held: held.waiting))
    @rule(name=sessions, spot=spots)
    def hang_up(self, name: str, spot: int) -> None:
        held = self.proof.sessions[name]
        if held.waiting:
            self.runner.run(self.proof.hang_up(held, held.waiting[spot % len(held.waiting)]))

    @precondition(lambda self: not self.proof.paused or self._some(Held.running))
    @rule()
    def pause(self) -> None:
        self.runner.run(self.proof.pause())

    @rule(newer=st.integers(0, 2))
    @precondition(lambda self: self.proof.paused)
    def resume(self, newer: int) -> None:
        self.runner.run(self.proof.resume(newer))

    @precondition(lambda self: self._some(lambda held: held.oracle.calls))
    @rule(
        ends=st.tuples(st.integers(0, 1000), st.integers(0, 1000)), is_killed=st.booleans(), expires=st.booleans()
    )  # fmt: skip
    def crash(self, ends: tuple[int, int], is_killed: bool, expires: bool) -> None:
        """`is_killed`: nothing that was written is lost. Else the journals are cut anywhere."""

        def cut(held: Held, size: int) -> int:
            return size if is_killed else size * ends[held.session_id == "b"] // 1000

        self.runner.run(self._crash(cut, expires))

    async def _crash(self, cut: Any, expires: bool) -> None:
        if expires:
            await self.proof.crash(cut, session_idle_seconds=0.002)
            for held in list(self.proof.sessions.values()):
                await self._see_expire(held)
            await self.proof.stop()
            await self.proof.start()
        else:
            await self.proof.crash(cut)
        await self._open_all()

    async def _see_expire(self, held: Held) -> None:
        if held.handle is None:
            return
        async with asyncio.timeout(10):
            while (sealed := await self.proof.server.fetch(held.session_id)) is None:
                await asyncio.sleep(0.001)
        check_sealed(held, sealed, "expired")
        await self._drop(held)

    @precondition(lambda self: self._some(lambda held: held.oracle.calls))
    @rule(name=sessions)
    def seal_and_drop(self, name: str) -> None:
        self.runner.run(self._seal_and_drop(self.proof.sessions[name], reopens=True))

    async def _seal_and_drop(self, held: Held, reopens: bool) -> None:
        await self._seal(held)
        old = held.handle
        assert old is not None
        status = await self._status(old.base_url, old.api_key)
        assert status == 410, "a sealed session takes no call"
        await self._drop(held)
        if reopens:
            await asyncio.sleep(0)
            await self.proof.open(self.proof.sessions[held.session_id])

    async def _seal(self, held: Held) -> None:
        running = held.running()
        sealed = await self.proof.server.seal(held.session_id)
        for call in running:
            held.oracle.fail(call, "sealed")
        for waiting in held.waiting:
            assert not (await waiting.client.result()).is_whole, "a reply that is not in the record was ended"
        held.waiting = []
        await self.proof.settle()
        check_sealed(held, sealed)
        last = self.proof.bytes_of(held)
        assert await self.proof.server.seal(held.session_id) == sealed == await self.proof.server.fetch(held.session_id)
        assert self.proof.bytes_of(held) == last

    async def _drop(self, held: Held) -> None:
        await self.proof.server.drop(held.session_id)
        assert self.proof.bytes_of(held) == b""
        with pytest.raises(UnknownSession):
            await self.proof.server.fetch(held.session_id)
        self.proof.sessions[held.session_id] = Held(held.session_id)

    @rule(api=apis)
    def ask_with_another_session_s_key(self, api: str) -> None:
        mine, other = (self.proof.sessions[name].handle for name in ("b", "a"))
        assert mine is not None
        assert other is not None
        status = self.runner.run(self._status(other.base_url, mine.api_key, api))
        assert status == 401

    async def _status(self, base_url: str, key: str, api: str = "chat", headers: dict[str, str] | None = None) -> int:
        body = conversation_body(api, [("user", "not to be sampled")], None, False)
        client = Client(api, body, {"x-api-key": key} | (headers or {}))
        client.start(self.proof.http, base_url)
        heard = await client.result()
        await self.proof.settle()
        return heard.status

    @invariant()
    def what_was_sent_is_the_oracle_s_prompt_and_nothing_else(self) -> None:
        self.proof.check_prompts()

    @invariant()
    def what_the_disk_has_is_what_the_oracle_knows(self) -> None:
        for held in self.proof.sessions.values():
            self.proof.check_journal(held)

    @invariant()
    def what_clients_heard_so_far_was_sampled(self) -> None:
        for held in self.proof.sessions.values():
            for waiting in held.waiting:
                heard, call = waiting.client.heard, waiting.call
                assert not heard.is_whole
                assert text_of(call.sampled).startswith(heard.text)

    def teardown(self) -> None:
        if hasattr(self, "proof"):
            self.runner.run(self._end())
        shutil.rmtree(self.folder)

    async def _end(self) -> None:
        try:
            for held in list(self.proof.sessions.values()):
                await self._seal(held)
        finally:
            await self.proof.stop()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, "a proxy that was stopped leaves nothing running"

    async def _ask(self, held: Held, api: str, body: Any, asked: Asked, reply: str, merged: bool, **how: Any) -> None:
        headers = {}
        if how.get("has_key"):
            self.asks += 1
            asked = Asked(asked.body, asked.turns, asked.text, f"key {self.asks}")
        if asked.key:
            headers["Idempotency-Key"] = asked.key
        if asked.retries:
            headers["x-stainless-retry-count"] = str(asked.retries)
        client = Client(api, body, headers)
        joins = held.oracle.repeated(asked)
        event(f"{api} {joins.state if joins else 'new'}")
        call, heard = await self.proof.ask(held, client, asked, reply_tokens(reply, merged), **how)
        if heard is not None:
            self._check_reply(call, heard)

    @staticmethod
    def _check_reply(call: Generated, heard: Heard) -> None:
        assert (heard.status, heard.is_whole) == (200, True), heard
        assert heard.text == text_of(call.tokens)

    def _some(self, has: Callable[[Held], Any]) -> bool:
        return any(has(held) for held in self.proof.sessions.values())

    @staticmethod
    def _known(api: str, body: Any) -> str:
        return json.dumps([api, body])

    def _next_turns(self, held: Held, spot: int, change: str, word: str) -> Turns:
        """What an agent says next: it goes on with a conversation, having done something to what it holds of it."""
        known: list[Turns] = [(("system", "be brief"),), ()]
        known += [c.turns_after for c in held.oracle.calls if c.asked.text is None and c.state == "answered"]
        turns = known[-1 - spot % len(known)]
        said = [role for role, _ in turns]
        if change == "compact":
            turns = (("user", f"so far: {len(turns)} turns"), ("assistant", "understood"))
        elif change == "shorten" and said.count("assistant") > 1:
            turns = turns[: said.index("assistant") + 1]
        elif change.startswith("strip") or change == "rewrite":
            turns = tuple((role, _changed(text, change) if role == "assistant" else text) for role, text in turns)
        return (*turns, ("user", word))

    @staticmethod
    def _stored(held: Held) -> list[tuple[str, Generated]]:
        return [(c.reply_id, c) for c in held.oracle.calls if c.reply_id and json.loads(c.asked.body)[0] == "responses"]

    def _is_stored(self, held: Held, reply_id: str) -> bool:
        return any(name == reply_id and call.state == "answered" for name, call in self._stored(held))


def _changed(text: str, change: str) -> str:
    match change:
        case "strip thinking":
            return text.rpartition("</think>")[2]
        case "strip blanks":
            return text.strip()
    return f"{text} indeed"


PARTS = 4
"""Test cases among which the examples are shared, so that several processes can work on them."""


def a_part() -> type[RuleBasedStateMachine.TestCase]:
    machine: type[Any] = type("Machine", (ProxyMachine,), {})

    def begin(_case: type[Any]) -> None:
        machine.runner = asyncio.Runner()

    case: type[Any] = machine.TestCase
    case.setUpClass = classmethod(begin)
    case.tearDownClass = classmethod(lambda _case: machine.runner.close())
    case.settings = settings(
        max_examples=max(EXAMPLES // PARTS, 1),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return case


TestFirst, TestSecond, TestThird, TestFourth = (a_part() for _ in range(PARTS))
pytestmark = pytest.mark.timeout(60 + EXAMPLES)
