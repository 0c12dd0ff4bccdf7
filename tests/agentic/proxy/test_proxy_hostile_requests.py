"""What cannot be seen through an HTTP library: bytes that no text has, and answers that break off."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm
from proxy_rig import a_spec, ids_of, says, user
from yarl import URL

from agentic.proxy import ProxyServer, ProxySettings, Renderer, ScriptedEngine, make_renderer
from agentic.proxy.engines.vllm_http import VllmHttpEngine

TURN = {"messages": [user("hi")]}


class SpeechlessRenderer:
    """A renderer that breaks when the text of a token is asked for, which is when an answer has begun."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def token_text(self, _token: int) -> str:
        raise KeyError("no text")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)


async def exchanged(server: ProxyServer, body: dict[str, Any], header: bytes = b"X: x") -> bytes:
    """All that comes back for one turn of a new session, byte by byte."""
    handle = await server.open(a_spec())
    address, sent = URL(server.agent_url), json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = b"POST /s/rollout-1/v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    key = f"Authorization: Bearer {handle.api_key}\r\nContent-Length: {len(sent)}\r\n\r\n".encode()
    writer.write(head + header + b"\r\n" + key + sent)
    answer = b""
    try:
        async with asyncio.timeout(20):
            while data := await reader.read(1 << 16):
                answer += data
    except ConnectionResetError:
        pass
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Idempotency-Key: a\xff", 400),
        (b"x-stainless-retry-count: " + b"9" * 5000, 200),
        (b"x-stainless-retry-count: \xb2", 200),
        (b"traceparent: \xff", 200),
        (b"baggage: user=\xff", 200),
    ],
)
async def test_headers_that_no_client_sends_are_answered_for_what_they_are(
    tiny_folder: Path, tmp_path: Path, header: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ProxySettings(journal_directory=tmp_path / "journal")
    async with FakeVllm(list(ids_of("hello<|im_end|>"))).serving() as vllm:
        server = ProxyServer(settings, VllmHttpEngine(vllm.url), make_renderer(tiny_folder))
        await server.start()
        answer = await exchanged(server, TURN, header)
        await server.stop()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert "broke" not in caplog.text


async def test_an_answer_that_breaks_after_it_began_is_broken_off_and_never_followed_by_another(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    renderer = SpeechlessRenderer(make_renderer(tiny_folder))
    server = ProxyServer(ProxySettings(), ScriptedEngine([says("hello")]), renderer)
    await server.start()
    answer = await exchanged(server, TURN | {"stream": True, "logprobs": True})
    sealed = await server.seal("rollout-1")
    await server.stop()
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert not answer.endswith(b"0\r\n\r\n")
    assert "no text" in caplog.text
    assert (sealed.complete, sealed.undelivered_tokens) == (True, sealed.sampled_tokens)
