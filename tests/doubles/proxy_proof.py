"""A real proxy with a journal, a stepped engine and clients of every API, beside the oracle that says what must be.

Each move waits until the proxy has come to rest, by what can be seen from outside: its numbers, its list, its engine
and its connections. So moves have an order, although everything behind them is concurrent.
"""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import aiohttp
from proxy_oracle import END, MERGED, Asked, Generated, SessionOracle, Tokens
from proxy_rig import a_spec
from proxy_speaking import Client, Heard
from proxy_tokens import TINY_TEMPLATE, make_tokenizer, write_model_folder
from stepped_engine import Plan, SteppedEngine

from agentic.proxy import ProxyServer, ProxySettings, Renderer, Sampling, SealedSession, SessionHandle, make_renderer

TOKENIZER = make_tokenizer([("z", "q")])
BLANKS = {"Ġ": " ", "Ċ": "\n"}
SETTLE_SECONDS = 10.0
FOREVER_SECONDS = 600.0


def named(ids: Any) -> Tokens:
    """Ids as the oracle's tokens."""
    names = (str(TOKENIZER.id_to_token(token)) for token in ids)
    return tuple(BLANKS.get(name, name) for name in names)


def numbered(tokens: Tokens) -> tuple[int, ...]:
    """The oracle's tokens as ids."""
    letters = {text: letter for letter, text in BLANKS.items()}
    return tuple(int(TOKENIZER.token_to_id(letters.get(token, token))) for token in tokens)


@cache
def renderer() -> Renderer:
    """Of the tiny policy, with one merge."""
    folder = Path(mkdtemp())
    try:
        return make_renderer(write_model_folder(folder, TINY_TEMPLATE, [("z", "q")]))
    finally:
        shutil.rmtree(folder)


@dataclass
class Waiting:
    """A client whose reply has not come yet."""

    client: Client
    call: Generated


@dataclass
class Held:
    """One open session: its handle, what it must be, and who waits."""

    session_id: str
    oracle: SessionOracle = field(default_factory=SessionOracle)
    handle: SessionHandle | None = None
    waiting: list[Waiting] = field(default_factory=list)

    def running(self) -> list[Generated]:
        """Calls under way."""
        return [call for call in self.oracle.calls if call.state == "running"]


def records_of(data: bytes) -> list[dict[str, Any]]:
    """The whole lines of a journal."""
    return [json.loads(line[9:]) for line in data.split(b"\n")[:-1]]


class Proof:
    """The proxy, its sessions, and what must be true of them."""

    def __init__(self, folder: Path, grace_seconds: float) -> None:
        self._folder = folder
        self._grace_seconds = grace_seconds
        self._starts = 0
        self.sessions = {name: Held(name) for name in ("a", "b")}
        self.version = 0
        self.paused = False
        self.sampled = 0
        """Generations started over all, so that log-probabilities tell them apart."""
        self.joined = 0
        self.received_before = 0

    async def start(self, **settings: Any) -> None:
        """A server on what the journal holds, with an engine that knows nothing yet."""
        self.engine = SteppedEngine()
        fields = {"abandon_grace_seconds": self._grace_seconds, "journal_directory": self.journal} | settings
        self.server = ProxyServer(ProxySettings(**fields), self.engine, renderer())
        await self.server.start()
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        self.paused, self.joined, self.received_before = False, 0, 0
        if self.version:
            await self.server.resume(self.version)

    async def stop(self) -> None:
        """End the server; what ran is recorded as cut."""
        await self.server.stop()
        await self.http.close()

    @property
    def journal(self) -> Path:
        """Of the server that runs now."""
        return self._folder / f"journal-{self._starts}"

    def bytes_of(self, held: Held) -> bytes:
        """The session's journal as it stands on the disk."""
        path = self.journal / f"{held.session_id}.journal"
        return path.read_bytes() if path.exists() else b""

    async def open(self, held: Held) -> None:
        """Open it, or find it open."""
        sampling = Sampling(temperature=1, max_tokens=400)
        held.handle = await self.server.open(
            a_spec(held.session_id, sampling=sampling, max_prompt_tokens=9000, max_response_tokens=9000, max_calls=900)
        )

    def logprobs(self, count: int) -> tuple[float | None, ...]:
        """Numbers that no other generation has, exact in 32 bits."""
        self.sampled += 1
        return tuple(-(self.sampled * 512 + place + 1) / 512 for place in range(count))

    async def ask(
        self, held: Held, client: Client, asked: Asked, tokens: Tokens, **how: Any
    ) -> tuple[Generated, Heard | None]:
        """Send a request; give its call and its reply, None while it has to wait. `cap`, `hold`, `lacks` say how."""
        oracle = held.oracle
        assert held.handle is not None
        call = oracle.repeated(asked)
        is_new = call is None
        if call is None:
            cut = tokens[: how["cap"]] if how.get("cap") else tokens
            logprobs = self.logprobs(len(tokens))
            if how.get("lacks"):
                logprobs = (None, *logprobs[1:])
            call = oracle.start(asked, cut, logprobs[: len(cut)])
            hold = 0 if self.paused else how.get("hold")
            hold = None if hold is None else min(hold, len(cut) - 1)
            self.engine.plan(self.request_id(held, call), Plan(numbered(tokens), logprobs, hold))
        else:
            self.joined += 1
        ends = call.state == "running" and (self.paused or (not is_new) or how.get("hold") is not None)
        call.waiting += 1
        client.headers["Authorization"] = f"Bearer {held.handle.api_key}"
        client.start(self.http, held.handle.base_url)
        if ends:
            held.waiting.append(Waiting(client, call))
            await self.until(lambda: self._is_admitted(held, call, is_new))
            if is_new and not self.paused:
                oracle.give(call, min(how["hold"], len(call.tokens) - 1), self.version)
            return call, None
        heard = await client.result()
        if call.state == "running":
            oracle.answer(call, self.version)
        call.delivered, call.waiting, call.reply_id = True, call.waiting - 1, heard.reply_id
        await self.settle()
        return call, heard

    def _is_admitted(self, held: Held, call: Generated, is_new: bool) -> bool:
        if not is_new:
            return self.server_metrics().requests_joined == self.joined
        if self.paused:
            return self.server_metrics().calls_running == sum(len(h.running()) for h in self.sessions.values())
        return self.request_id(held, call) in self.engine.holding

    def server_metrics(self) -> Any:
        """The server's numbers as they are now."""
        coroutine = self.server.metrics()
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("metrics are made without waiting")

    @staticmethod
    def request_id(held: Held, call: Generated) -> str:
        """What the engine knows a call by."""
        return f"{held.session_id}/{call.number}"

    async def release(self, held: Held, call: Generated) -> list[tuple[Client, Heard]]:
        """Let a generation end; gives what its clients heard."""
        answered = self.server_metrics().calls_answered
        self.engine.release(self.request_id(held, call))
        await self.until(lambda: self.server_metrics().calls_answered > answered)
        held.oracle.answer(call, self.version)
        return await self.gather(held, call)

    async def break_off(self, held: Held, call: Generated) -> list[tuple[Client, Heard]]:
        """The engine fails in the middle; gives what its clients heard."""
        cut = self.server_metrics().calls_cut
        self.engine.break_off(self.request_id(held, call))
        await self.until(lambda: self.server_metrics().calls_cut > cut)
        held.oracle.fail(call, "engine")
        return await self.gather(held, call)

    async def gather(self, held: Held, call: Generated) -> list[tuple[Client, Heard]]:
        """The end of what a call's clients hear."""
        mine = [waiting for waiting in held.waiting if waiting.call is call]
        held.waiting = [waiting for waiting in held.waiting if waiting.call is not call]
        call.waiting = 0
        heard = [(waiting.client, await waiting.client.result()) for waiting in mine]
        for _, each in heard:
            call.reply_id = each.reply_id or call.reply_id
        await self.settle()
        return heard

    async def hang_up(self, held: Held, waiting: Waiting) -> None:
        """A client closes its connection; the last one of a call with no grace ends it."""
        abandoned = self.server_metrics().calls_abandoned
        held.waiting.remove(waiting)
        waiting.call.waiting -= 1
        await waiting.client.hang_up()
        if waiting.call.waiting == 0 and self._grace_seconds == 0:
            await self.until(lambda: self.server_metrics().calls_abandoned > abandoned)
            held.oracle.fail(waiting.call, "abandoned")
        await self.settle()

    async def pause(self) -> None:
        """New weights: what is sampled is interrupted."""
        running = sum(len(held.running()) for held in self.sessions.values())
        told = await self.server.pause()
        assert told.interrupted == (0 if self.paused else running)
        self.paused = True

    async def resume(self, newer: int) -> None:
        """Go on with weights of a version that is so much newer."""
        self.version += newer
        await self.server.resume(self.version)
        self.paused = False
        running = [(held, call) for held in self.sessions.values() for call in held.running()]
        await self.until(lambda: {self.request_id(*each) for each in running} == self.engine.holding)

    async def crash(self, cut: Callable[[Held, int], int], **settings: Any) -> None:
        """The process dies: what the disk has of each journal, cut at some byte, is all that the next one finds."""
        left = {held.session_id: self.bytes_of(held) for held in self.sessions.values()}
        secret = (self.journal / "keys.secret").read_bytes()
        await self.stop()
        for held in self.sessions.values():
            for waiting in held.waiting:
                assert not (await waiting.client.result()).is_whole
            held.waiting = []
        self._starts += 1
        self.journal.mkdir()
        (self.journal / "keys.secret").write_bytes(secret)
        for held in self.sessions.values():
            data = left[held.session_id]
            kept = data[: cut(held, len(data))]
            (self.journal / f"{held.session_id}.journal").write_bytes(kept)
            self._survive(held, records_of(kept))
        await self.start(**settings)

    @staticmethod
    def _survive(held: Held, records: list[dict[str, Any]]) -> None:
        if records:
            held.oracle.survive(records)
        else:
            held.oracle, held.handle = SessionOracle(), None

    async def settle(self) -> None:
        """Until the server has no connection but those that wait."""
        await self.until(lambda: connections() == sum(len(held.waiting) for held in self.sessions.values()))
        await asyncio.sleep(0)

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something to become true, mostly at once."""
        for _ in range(50):
            if happened():
                return
            await asyncio.sleep(0)
        async with asyncio.timeout(SETTLE_SECONDS):
            while not happened():
                await asyncio.sleep(0.0005)

    def check_prompts(self) -> None:
        """Invariants 1, 4, 5, 9: each attempt was sent the oracle's prompt and the tokens so far, and no other was."""
        for received in self.engine.received[self.received_before :]:
            name, _, number = received.request_id.rpartition("/")
            call = self.sessions[name].oracle.calls[int(number)]
            sent = named(received.prompt_ids)
            assert sent[: len(call.prompt)] == call.prompt, f"{received.request_id} was sent {sent}, not {call.prompt}"
            so_far = sent[len(call.prompt) :]
            assert so_far == call.tokens[: len(so_far)]
        self.received_before = len(self.engine.received)

    def check_journal(self, held: Held) -> None:
        """Invariants 2, 4, 5, 6, 9, 10: what is on the disk is what the oracle knows, token for token, each once."""
        records = records_of(self.bytes_of(held))
        assert [r["kind"] for r in records].count("opened") == (held.handle is not None)
        oracle = held.oracle
        started = [(r["call"], r["supersedes"]) for r in records if r["kind"] == "started"]
        assert started == [(call.number, call.replaces) for call in oracle.calls]
        committed = {r["call"]: r for r in records if r["kind"] == "committed"}
        assert len(committed) == sum(r["kind"] == "committed" for r in records)
        assert set(committed) == {call.number for call in oracle.recorded()}
        for call in oracle.recorded():
            record = committed[call.number]
            assert named(record["ids"]) == call.sampled
            assert tuple(record["logprobs"]) == call.logprobs[: call.given]
            assert record["versions"] == call.versions == sorted(call.versions)
            assert record["answered"] == (call.state == "answered")


def check_sealed(held: Held, sealed: SealedSession, ending: str = "sealed") -> None:
    """Invariants 1, 2, 3, 6, 8 on what is handed over."""
    oracle = held.oracle
    recorded = oracle.recorded()
    assert (sealed.session_id, sealed.ending, sealed.calls) == (held.session_id, ending, len(oracle.calls))
    assert sealed.cut == oracle.cut
    assert sealed.complete == oracle.is_complete
    assert sealed.sampled_tokens == sum(call.given for call in recorded)
    assert sealed.undelivered_tokens == sum(call.given for call in recorded if not call.delivered)
    trained: list[tuple[Tokens, tuple[float, ...], tuple[int, ...]]] = []
    wholes = [named([*t.prompt_ids, *t.response_ids]) for t in sealed.trajectories]
    for trajectory in sealed.trajectories:
        parts = (trajectory.response_ids, trajectory.response_mask, trajectory.response_logprobs, trajectory.versions)
        assert len({len(part) for part in parts}) == 1
        trained += _stretches(list(zip(*parts, strict=True)))
    assert sorted(trained) == oracle.trains()
    for call in recorded:
        whole = (*call.prompt, *call.sampled)
        assert any(path[: len(whole)] == whole for path in wholes), f"call {call.number} is on no path"


def _stretches(
    rows: "list[tuple[int, int, float, int]]",
) -> "list[tuple[Tokens, tuple[float, ...], tuple[int, ...]]]":
    """The runs of trained tokens."""
    runs: list[list[tuple[int, int, float, int]]] = [[]]
    for row in rows:
        if row[1]:
            runs[-1].append(row)
        else:
            assert row[2] == 0.0
            runs.append([])
    return [(named(r[0] for r in run), tuple(r[2] for r in run), tuple(r[3] for r in run)) for run in runs if run]


def reply_tokens(text: str, is_merged: bool, ends: bool = True) -> Tokens:
    """A reply as a model samples it: with the merged token, or with its two letters, which encoding never gives."""
    tokens: list[str] = []
    for part in text.replace(MERGED, f"\0{MERGED}\0").split("\0"):
        tokens += [MERGED] if part == MERGED and is_merged else list(part)
    return (*tokens, *([END] if ends else []))


def connections() -> int:
    """How many connections the server of this loop serves: it has a task for each."""
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return sum(name == "RequestHandler.start" for name in names)
