"""Streaming over HTTP: text comes as it is sampled, and clients that leave, dawdle or retry lose nothing."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from proxy_rig import Rig, a_spec, ids_of, numbered, running, says, until, user

from agentic.proxy import (
    CallSampling,
    Chunk,
    MemoryJournal,
    ProxyServer,
    ProxySettings,
    Sampling,
    ScriptedEngine,
    ScriptedReply,
    SessionHandle,
    make_renderer,
)
from agentic.proxy.errors import JournalError
from agentic.proxy.events import Event

ANSWER = ids_of("abcdefghij<|im_end|>")


@asynccontextmanager
async def streaming(
    rig: Rig, handle: SessionHandle, text: str = "hi", headers: dict[str, str] | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A streamed chat request whose answer has begun."""
    body = {"messages": [user(text)], "stream": True}
    key = {"Authorization": f"Bearer {handle.api_key}"} | (headers or {})
    async with rig.http.post(f"{handle.base_url}/chat/completions", json=body, headers=key) as response:
        yield response


async def payloads(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The events of a stream; the end mark as None."""
    async for line in response.content:
        if line.startswith(b"data: "):
            text = line[6:].strip()
            yield None if text == b"[DONE]" else json.loads(text)


def text_in(payload: Any) -> str:
    """The text that an event carries."""
    choices = (payload or {}).get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")


async def read_until(events: AsyncIterator[Any], wanted: str) -> str:
    """The text of a stream up to where it holds something."""
    text = ""
    async for payload in events:
        text += text_in(payload)
        if wanted in text:
            break
    return text


def rest_of_answer(prompt: Sequence[int], _sampling: CallSampling, _request_id: str) -> ScriptedReply:
    """The answer's tokens that the prompt does not end with yet, so a resumed generation goes on."""
    held = next(n for n in range(len(ANSWER), -1, -1) if tuple(prompt)[len(prompt) - n :] == ANSWER[:n])
    return ScriptedReply(ANSWER[held:], chunk_tokens=2, delay_seconds=0.02)


async def test_text_reaches_the_client_while_the_engine_is_still_sampling(tiny_folder: Path) -> None:
    async with running(tiny_folder, [ScriptedReply(ANSWER, chunk_tokens=2, hang_after=3)]) as rig:
        handle = await rig.server.open(a_spec())
        async with streaming(rig, handle) as response:
            text = await read_until(payloads(response), "f")
            metrics = await rig.server.metrics()
    assert (text, metrics.calls_running, metrics.calls_answered) == ("abcdef", 1, 0)


async def test_a_client_that_leaves_in_the_middle_has_its_generation_aborted_after_the_grace(
    tiny_folder: Path,
) -> None:
    script = [ScriptedReply(ANSWER, chunk_tokens=2, hang_after=3), says("next")]
    async with running(tiny_folder, script, abandon_grace_seconds=0.05) as rig:
        handle = await rig.server.open(a_spec())
        async with streaming(rig, handle) as response:
            await read_until(payloads(response), "f")
        await until(lambda: rig.engine.aborted == ["rollout-1/0"])
        assert (await rig.ask(handle, [user("hi")])).text == "next"
        sealed = await rig.server.seal("rollout-1")
        metrics = await rig.server.metrics()
    assert (sealed.complete, sealed.cut, sealed.undelivered_tokens) == (True, {"abandoned": 1}, 6)
    assert sum(sum(t.response_mask) for t in sealed.trajectories) == len(ids_of("next<|im_end|>"))
    assert (metrics.calls_abandoned, metrics.calls_cut, metrics.calls_answered) == (1, 1, 1)


async def test_a_retry_within_the_grace_joins_the_generation_and_gets_it_from_the_beginning(tiny_folder: Path) -> None:
    reply = ScriptedReply(ANSWER, chunk_tokens=2, delay_seconds=0.03)
    async with running(tiny_folder, [reply], abandon_grace_seconds=2) as rig:
        handle = await rig.server.open(a_spec())
        async with streaming(rig, handle) as response:
            await read_until(payloads(response), "b")
        async with streaming(rig, handle) as response:
            events = [payload async for payload in payloads(response)]
        sealed = await rig.server.seal("rollout-1")
        joined = (await rig.server.metrics()).requests_joined
    assert ("".join(map(text_in, events)), events[-1]) == ("abcdefghij", None)
    assert (len(rig.engine.received), rig.engine.aborted, joined) == (1, [], 1)
    assert (sealed.calls, sealed.undelivered_tokens) == (1, 0)


class Unstoppable(ScriptedEngine):
    """Samples on after it was told to stop, as verl's servers do, and says at the end what came of it."""

    def __init__(self, script: Sequence[ScriptedReply]) -> None:
        super().__init__(script)
        self.rest = Chunk(ids_of("rest<|im_end|>"), (-0.25,) * len(ids_of("rest<|im_end|>")), 3, "stop")

    async def abort(self, request_id: str) -> Chunk | None:
        await super().abort(request_id)
        await asyncio.sleep(0.05)
        return self.rest


@pytest.mark.parametrize("ends", ["hang up", "seal", "pause"])
async def test_what_an_engine_samples_after_it_was_told_to_stop_is_recorded(tiny_folder: Path, ends: str) -> None:
    engine = Unstoppable([ScriptedReply(ANSWER, chunk_tokens=2, hang_after=1), says("next")])
    server = ProxyServer(ProxySettings(abandon_grace_seconds=0), engine, make_renderer(tiny_folder))
    await server.start()
    async with aiohttp.ClientSession() as http:
        rig, handle = Rig(server, engine, http), await server.open(a_spec())
        asking = asyncio.create_task(rig.ask(handle, [user("hi")]))
        await until(lambda: bool(engine.received))
        if ends == "hang up":
            asking.cancel()
            await until(lambda: engine.aborted == ["rollout-1/0"])
            await server.pause()
            await server.resume()
            assert engine.aborted == ["rollout-1/0"], "told once"
            assert (await rig.ask(handle, [user("and?")])).text == "next"
        elif ends == "pause":
            await server.pause()
            await server.resume()
            assert (await asking).text == "abrest"
        sealed = await server.seal("rollout-1")
        await asyncio.wait([asking])
    await server.stop()
    count = len(ids_of("abrest<|im_end|>"))
    assert (sealed.complete, sealed.cut) == (True, {"hang up": {"abandoned": 1}, "seal": {"sealed": 1}}.get(ends, {}))
    assert sealed.undelivered_tokens == (0 if ends == "pause" else count)
    (ids,) = [t for t in sealed.trajectories if 3 in t.versions]
    assert list(ids.versions).count(3) == len(engine.rest.ids)
    assert sum(ids.response_mask) == (count if ends == "pause" else 0)


class SlowlyAborted(ScriptedEngine):
    """Takes a while to stop."""

    async def abort(self, request_id: str) -> None:
        await super().abort(request_id)
        await asyncio.sleep(0.2)


async def test_a_retry_that_comes_while_the_generation_is_aborted_samples_anew(tiny_folder: Path) -> None:
    engine = SlowlyAborted([ScriptedReply(ANSWER, chunk_tokens=2, hang_after=1), says("anew")])
    server = ProxyServer(ProxySettings(abandon_grace_seconds=0), engine, make_renderer(tiny_folder))
    await server.start()
    async with aiohttp.ClientSession() as http:
        rig, handle = Rig(server, engine, http), await server.open(a_spec())
        async with streaming(rig, handle) as response:
            await read_until(payloads(response), "b")
        await until(lambda: engine.aborted == ["rollout-1/0"])
        assert (await rig.ask(handle, [user("hi")])).text == "anew"
    assert (await server.seal("rollout-1")).cut == {"abandoned": 1}
    await server.stop()


async def test_a_call_that_a_stopping_proxy_cuts_may_be_asked_again(tiny_folder: Path) -> None:
    async with running(tiny_folder, [ScriptedReply(ANSWER, chunk_tokens=2, hang_after=1)]) as rig:
        handle = await rig.server.open(a_spec())
        asking = asyncio.create_task(rig.ask(handle, [user("hi")]))
        await until(lambda: bool(rig.engine.received))
        await rig.server.stop()
        answer = await asking
    assert (answer.status, answer.body["error"]["code"]) == (503, "worker_unavailable")


async def test_a_slow_client_holds_nothing_up_and_is_taken_for_gone(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens, path = 20000, tmp_path / "proxy.sock"
    spec = a_spec(sampling=Sampling(temperature=1, max_tokens=tokens), max_response_tokens=tokens)
    script = [ScriptedReply(ids_of("x" * tokens))]
    async with running(tiny_folder, script, unix_socket=path, write_timeout_seconds=0.3) as rig:
        handle = await rig.server.open(spec)
        with socket.socket(socket.AF_UNIX) as client:  # its buffers are smaller than what comes
            client.connect(str(path))
            body = json.dumps({"messages": [user("hi")], "stream": True, "logprobs": True})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {handle.api_key}\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            async with asyncio.timeout(20):
                while (await rig.server.metrics()).calls_answered == 0:
                    await asyncio.sleep(0.01)
                while "undelivered" not in await rig.server.describe("rollout-1"):
                    await asyncio.sleep(0.01)
        sealed = await rig.server.seal("rollout-1")
    assert (sealed.complete, sealed.sampled_tokens, sealed.undelivered_tokens) == (True, tokens, tokens)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_stream_that_breaks_ends_with_an_error_and_the_retry_samples_anew(tiny_folder: Path) -> None:
    script = [ScriptedReply(ANSWER, chunk_tokens=2, fail_after=2), says("whole")]
    async with running(tiny_folder, script) as rig:
        handle = await rig.server.open(a_spec())
        async with streaming(rig, handle) as response:
            events = [payload async for payload in payloads(response)]
        again = await rig.ask(handle, [user("hi")], headers={"x-stainless-retry-count": "1"})
        sealed = await rig.server.seal("rollout-1")
    assert "".join(map(text_in, events)) == "abcd"
    assert any("error" in event for event in events if event is not None)
    assert not any(choice["finish_reason"] for event in events if event for choice in event.get("choices", []))
    assert (again.text, sealed.cut, sealed.undelivered_tokens) == ("whole", {"engine": 1}, 4)


async def test_a_failure_before_the_first_token_has_a_status_of_its_own(tiny_folder: Path) -> None:
    async with running(tiny_folder, [ScriptedReply(ANSWER, fail_after=0)]) as rig:
        handle = await rig.server.open(a_spec())
        async with streaming(rig, handle) as response:
            body = await response.json()
    assert (response.status, body["error"]["code"]) == (502, "generation_failed")


class Unwritable(MemoryJournal):
    """Takes everything but replies."""

    async def append(self, session_id: str, events: Sequence[Event], is_durable: bool = True) -> None:
        if any(event.kind == "committed" for event in events):
            raise JournalError("no space left")
        await super().append(session_id, events, is_durable)


async def test_the_end_of_a_stream_waits_for_the_record(tiny_folder: Path) -> None:
    async with running(tiny_folder, [ScriptedReply(ANSWER)], journal=Unwritable()) as rig:
        handle = await rig.server.open(a_spec())
        async with streaming(rig, handle) as response:
            events = [payload async for payload in payloads(response)]
    assert "".join(map(text_in, events)) == "abcdefghij"
    assert not any(choice["finish_reason"] for event in events if event for choice in event.get("choices", []))
    assert any("no space left" in str(event) for event in events)


async def test_pausing_interrupts_and_resuming_goes_on_with_the_tokens_so_far(tiny_folder: Path) -> None:
    async with running(tiny_folder, rest_of_answer) as rig:
        handle = await rig.server.open(a_spec())
        async with streaming(rig, handle) as response:
            events = payloads(response)
            begun = await read_until(events, "d")
            paused = await rig.server.pause()
            twice = await rig.server.pause()
            await asyncio.sleep(0.05)
            assert len(rig.engine.received) == 1, "nothing is sampled while paused"
            await rig.server.resume(7)
            text = begun + await read_until(events, "j")
            assert [payload async for payload in events][-1] is None
        sealed = await rig.server.seal("rollout-1")
        interrupted = (await rig.server.metrics()).calls_interrupted
    assert (text, paused.interrupted, twice.interrupted, interrupted) == ("abcdefghij", 1, 0, 1)
    (only,) = sealed.trajectories
    assert (tuple(only.response_ids), set(only.response_mask)) == (ANSWER, {1})
    assert sorted(set(only.versions)) == [0, 7]
    assert only.versions == sorted(only.versions)
    first, second = rig.engine.received
    held = second.prompt_ids[len(first.prompt_ids) :]
    assert held == ANSWER[: len(held)]
    assert second.sampling.max_tokens == first.sampling.max_tokens - len(held)


async def test_a_call_that_comes_while_paused_waits(tiny_folder: Path) -> None:
    async with running(tiny_folder, numbered) as rig:
        handle = await rig.server.open(a_spec())
        await rig.server.pause()
        waiting = asyncio.create_task(rig.ask(handle, [user("hi")]))
        await asyncio.sleep(0.05)
        assert (waiting.done(), rig.engine.received) == (False, [])
        await rig.server.resume()
        assert (await waiting).status == 200


async def test_an_engine_that_interrupts_itself_is_asked_for_the_rest(tiny_folder: Path) -> None:
    replies = [ScriptedReply(ANSWER[:5], chunk_tokens=3, abort_after=1), ScriptedReply(ANSWER[3:], version=2)]
    async with running(tiny_folder, replies) as rig:
        handle = await rig.server.open(a_spec())
        answer = await rig.ask(handle, [user("hi")])
        sealed = await rig.server.seal("rollout-1")
    (only,) = sealed.trajectories
    assert (answer.text, only.versions) == ("abcdefghij", [0] * 3 + [2] * 8)


async def test_an_engine_that_gives_up_again_and_again_fails_the_call(tiny_folder: Path) -> None:
    async with running(tiny_folder, lambda *_: ScriptedReply(ANSWER, abort_after=0)) as rig:
        handle = await rig.server.open(a_spec())
        answer = await rig.ask(handle, [user("hi")])
    assert (answer.status, len(rig.engine.received)) == (502, 3)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_retry_of_an_answered_call_gets_the_same_reply(tiny_folder: Path, streamed: bool) -> None:
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec())
        first = await rig.ask(handle, [user("hi")], stream=streamed)
        again = await rig.ask(handle, [user("hi")], stream=streamed, headers={"x-stainless-retry-count": "1"})
    assert len(rig.engine.received) == 1
    assert again.body == first.body
