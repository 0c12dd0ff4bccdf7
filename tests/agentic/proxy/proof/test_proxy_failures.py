"""What breaks around the proxy: engines and the proxy itself killed in the middle, clients that are half there, bodies
that are too large, keys that are wrong. Nothing that was acknowledged is lost, and no session sees another's.

Full disks and torn records are in `test_proxy_journal.py`, slow clients in `test_proxy_streaming.py`, several processes
in `test_fleet.py`, hostile bodies in `dialects`.
"""

import asyncio
import gzip
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_vllm import FakeVllm
from proxy_rig import TOKENIZER, Rig, a_spec, ids_of, running, says, user
from proxy_speaking import PATHS, conversation_body, text_body

from agentic.proxy import ControlClient, ProxyServer, ProxySettings, SealedSession, SessionHandle, make_renderer
from agentic.proxy.engines.vllm_http import VllmHttpEngine

ANSWER = "an answer of some length"
CONTROL_KEY = "the control side's"


def trained(sealed: SealedSession) -> list[str]:
    """The text of each generation that trains."""
    texts: list[str] = []
    for t in sealed.trajectories:
        ids = [token for token, mask in zip(t.response_ids, t.response_mask, strict=True) if mask]
        texts += TOKENIZER.decode(ids, skip_special_tokens=False).split("<|im_end|>")[:-1]
    return texts


async def events_of(response: aiohttp.ClientResponse) -> list[Any]:
    """A stream's events, without its end mark."""
    lines = [line[6:].strip() async for line in response.content if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


async def test_an_engine_killed_in_the_middle_of_a_stream_and_started_again_costs_one_try(tiny_folder: Path) -> None:
    engine = FakeVllm(list(ids_of(f"{ANSWER}<|im_end|>")))
    engine.delay_seconds = 0.02
    async with engine.serving() as first:
        port = int(first.url.rpartition(":")[2])
        server = ProxyServer(ProxySettings(), VllmHttpEngine(first.url), make_renderer(tiny_folder))
        await server.start()
        handle = await server.open(a_spec())
        headers = {"Authorization": f"Bearer {handle.api_key}"}
        http = aiohttp.ClientSession(headers=headers)
        url, body = f"{handle.base_url}/chat/completions", {"messages": [user("hi")], "stream": True}
        response = await http.post(url, json=body)
        await response.content.readuntil(b'"content":"a')
    events = await events_of(response)
    down = await http.post(url, json=body, headers={"x-stainless-retry-count": "1"})
    engine.delay_seconds = 0
    async with engine.serving(port):
        again = await events_of(await http.post(url, json=body, headers={"x-stainless-retry-count": "2"}))
    sealed = await server.seal("rollout-1")
    await http.close()
    await server.stop()
    assert any("error" in event for event in events)
    assert not any(choice["finish_reason"] for event in events for choice in event.get("choices", []))
    assert down.status == 502
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in again if e["choices"]) == ANSWER
    assert (sealed.complete, sealed.cut, trained(sealed)) == (True, {"engine": 2}, [ANSWER])
    assert 0 < sealed.undelivered_tokens < len(engine.ids)


@pytest.mark.parametrize("api", PATHS)
async def test_a_prompt_that_the_engine_finds_too_long_is_an_overflow_by_every_api(tiny_folder: Path, api: str) -> None:
    engine = FakeVllm([])
    engine.status = 400
    engine.message = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
    body = text_body("hi", None, False) if api == "completions" else conversation_body(api, [("user", "hi")], 9, False)
    async with engine.serving() as vllm, aiohttp.ClientSession() as http:
        server = ProxyServer(ProxySettings(), VllmHttpEngine(vllm.url), make_renderer(tiny_folder))
        await server.start()
        handle = await server.open(a_spec())
        headers = {"x-api-key": handle.api_key}
        async with http.post(handle.base_url + PATHS[api], json=body, headers=headers) as response:
            told = json.dumps(await response.json())
        sealed = await server.seal("rollout-1")
        await server.stop()
    assert (response.status, sealed.overflowed, sealed.complete) == (400, True, True)
    assert sealed.cut == {"refused": 1}
    assert ("context_length_exceeded" in told) or (api == "messages" and "prompt is too long" in told), told


@pytest.mark.parametrize(
    ("status", "answered", "word"), [(400, 400, "refused"), (422, 400, "refused"), (500, 502, "engine")]
)
async def test_what_the_engine_refuses_is_told_apart_from_what_it_fails_at(
    tiny_folder: Path, status: int, answered: int, word: str
) -> None:
    engine = FakeVllm([])
    engine.status, engine.message = status, "no such grammar"
    async with engine.serving() as vllm, aiohttp.ClientSession() as http:
        server = ProxyServer(ProxySettings(), VllmHttpEngine(vllm.url), make_renderer(tiny_folder))
        await server.start()
        handle = await server.open(a_spec())
        headers, body = {"Authorization": f"Bearer {handle.api_key}"}, {"messages": [user("hi")]}
        async with http.post(f"{handle.base_url}/chat/completions", json=body, headers=headers) as response:
            assert response.status == answered
        sealed, metrics = await server.seal("rollout-1"), await server.metrics()
        await server.stop()
    assert (sealed.cut, sealed.complete) == ({word: 1}, True)
    assert (metrics.calls_cut, metrics.calls_refused) == (1, word == "refused")


class Command:
    """`python -m agentic.proxy` as a process that may be killed and started again on its ports."""

    def __init__(self, engine: str, model: Path, journal: Path) -> None:
        self._arguments = ["--engine", engine, "--tokenizer", str(model), "--journal", str(journal)]
        self._arguments += ["--engine-kind", "vllm"]
        self._ports: list[str] = []
        self.control_url = ""

    async def start(self) -> None:
        """Until it serves."""
        here = Path(__file__).parents[4]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentic.proxy", *self._arguments, *self._ports),
            stdout=asyncio.subprocess.PIPE,
            cwd=here,
            env={"AGENTIC_PROXY_CONTROL_KEY": CONTROL_KEY, "PATH": ""},
        )
        assert self._process.stdout is not None
        where = json.loads(await self._process.stdout.readline())
        self.control_url = where["control_url"]
        ports = [where[name].rpartition(":")[2] for name in ("agent_url", "control_url")]
        self._ports = ["--port", ports[0], "--control-port", ports[1]]

    async def end(self, number: int = signal.SIGKILL) -> None:
        """Kill it."""
        self._process.send_signal(number)
        await self._process.wait()


async def converse(handle: SessionHandle, turns: int, said: list[str]) -> None:
    """Turns of one session as an SDK has them: what breaks is sent again, with the count of tries."""
    messages: list[dict[str, Any]] = [user(f"I am {handle.session_id}")]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {handle.api_key}"}) as http:
        while len(said) < turns:
            for tries in range(400):
                retry = {"x-stainless-retry-count": str(tries)} if tries else {}
                try:
                    url = f"{handle.base_url}/chat/completions"
                    async with http.post(url, json={"messages": messages}, headers=retry) as response:
                        answer = await response.json()
                    assert response.status == 200, answer
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
                    continue
                break
            said.append(answer["choices"][0]["message"]["content"])
            messages += [{"role": "assistant", "content": said[-1]}, user("more")]


@pytest.mark.timeout(180)
async def test_a_proxy_killed_under_load_and_started_again_loses_nothing_that_it_acknowledged(
    tiny_folder: Path, tmp_path: Path
) -> None:
    engine = FakeVllm(list(ids_of(f"{ANSWER}<|im_end|>")))
    engine.delay_seconds = 0.002
    async with engine.serving() as vllm:
        command = Command(vllm.url, tiny_folder, tmp_path / "journal")
        await command.start()
        async with ControlClient(command.control_url, CONTROL_KEY) as control:
            handles = [await control.open(a_spec(f"s{n}")) for n in range(6)]
        said: dict[str, list[str]] = {handle.session_id: [] for handle in handles}
        talks = [asyncio.create_task(converse(handle, 6, said[handle.session_id])) for handle in handles]
        for acknowledged in (6, 16):
            while sum(map(len, said.values())) < acknowledged:
                await asyncio.sleep(0.005)
            await command.end()
            await command.start()
        await asyncio.gather(*talks)
        async with ControlClient(command.control_url, CONTROL_KEY) as control:
            sealed = [await control.seal(handle.session_id) for handle in handles]
        await command.end(signal.SIGTERM)
    for session in sealed:
        assert (session.complete, trained(session)) == (True, said[session.session_id])
        texts = [TOKENIZER.decode(t.prompt_ids + t.response_ids) for t in session.trajectories]
        assert all(f"I am {session.session_id}" in text and text.count("I am ") == 1 for text in texts)
    assert sum(session.cut.get("restart", 0) for session in sealed) > 0, "the kills met no call"


@asynccontextmanager
async def half_open(handle: SessionHandle, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Clients that announce a body and send half of it, and clients that do not end their headers."""
    host, port = handle.base_url.split("/")[2].split(":")
    head = f"POST /s/{handle.session_id}/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    whole = f'{head}Authorization: Bearer {handle.api_key}\r\nContent-Length: 999\r\n\r\n{{"messages": ['
    readers, writers = [], []
    for text in [whole] * count + [head] * count:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(text.encode())
        readers.append(reader)
        writers.append(writer)
    try:
        yield readers[:count]
    finally:
        for writer in writers:
            writer.close()


async def test_half_open_connections_hold_nobody_up_and_are_told_that_time_is_over(tiny_folder: Path) -> None:
    async with running(tiny_folder, read_timeout_seconds=1) as rig:
        handle, other = await rig.server.open(a_spec()), await rig.server.open(a_spec("other"))
        async with half_open(handle, 40) as readers:
            assert (await rig.ask(handle, [user("hi")])).text == "answer rollout-1/0"
            assert (await rig.ask(other, [user("hi")])).text == "answer other/0"
            answers = [await reader.readuntil(b"\r\n") for reader in readers]
            sealed = await rig.server.seal("rollout-1")
    assert set(answers) == {b"HTTP/1.1 408 Request Timeout\r\n"}
    assert (sealed.calls, sealed.complete) == (1, True)


async def post(rig: Rig, handle: SessionHandle, api: str, data: Any, **headers: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    key = {"x-api-key": handle.api_key, "Content-Type": "application/json"}
    async with rig.http.post(handle.base_url + PATHS[api], data=data, headers=key | headers) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("api", PATHS)
async def test_a_body_that_is_too_large_is_refused_however_it_comes(tiny_folder: Path, api: str) -> None:
    large = (
        text_body("x" * 9000, 9, False)
        if api == "completions"
        else conversation_body(api, [("user", "x" * 9000)], 9, False)
    )
    body = json.dumps(large).encode()

    async def in_pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 500):
            yield body[start : start + 500]

    for limits in ({"max_body_bytes": 4000}, {}):
        async with running(tiny_folder, **limits) as rig:
            handle = await rig.server.open(a_spec(max_body_bytes=None if limits else 4000))
            ways = [await post(rig, handle, api, body), await post(rig, handle, api, in_pieces())]
            ways.append(await post(rig, handle, api, gzip.compress(body), **{"Content-Encoding": "gzip"}))
            assert [status for status, _ in ways] == [413] * 3, ways
            assert all("error" in json.loads(text) for _, text in ways)
            assert (await rig.ask(handle, [user("hi")])).status == 200
            assert len(rig.engine.received) == 1


@pytest.mark.parametrize("api", PATHS)
async def test_keys_that_are_wrong_or_of_another_session_open_nothing_by_any_api(tiny_folder: Path, api: str) -> None:
    async with running(tiny_folder) as rig:
        mine, other = await rig.server.open(a_spec("mine")), await rig.server.open(a_spec("other"))
        body = json.dumps(
            text_body("hi", 9, False) if api == "completions" else conversation_body(api, [("user", "hi")], 9, False)
        )
        keys = ["", "wrong", mine.api_key[:-1], mine.api_key + "0", mine.api_key.replace("mine", "other", 1), "é.é.é.é"]
        keys += [mine.api_key.replace(".0.", ".9.") + "x", other.api_key]
        statuses = [await post(rig, mine.model_copy(update={"api_key": key}), api, body) for key in keys]
        assert [status for status, _ in statuses] == [401] * len(keys)
        assert all(mine.api_key not in text and other.api_key not in text for _, text in statuses)
        sealed = [await rig.server.seal(name) for name in ("mine", "other")]
    assert (rig.engine.received, [session.calls for session in sealed]) == ([], [0, 0])


async def test_a_key_ends_with_its_session_s_lifetime(tiny_folder: Path) -> None:
    async with running(tiny_folder, [says("in time")]) as rig:
        handle = await rig.server.open(a_spec(lifetime_seconds=0.2))
        assert (await rig.ask(handle, [user("hi")])).text == "in time"
        await asyncio.sleep(1.3)  # keys count whole seconds
        late = await rig.ask(handle, [user("too late")])
        async with asyncio.timeout(10):
            while (sealed := await rig.server.fetch("rollout-1")) is None:
                await asyncio.sleep(0.01)
    assert (late.status, late.body["error"]["code"]) == (401, "invalid_api_key")
    assert "expired" in late.body["error"]["message"]
    assert (sealed.ending, trained(sealed)) == ("expired", ["in time"])
