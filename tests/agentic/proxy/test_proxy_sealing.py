"""Sealing while a reply is being sent: what the client takes in time trains, what it did not take does not."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from proxy_rig import Rig, a_spec, ids_of, running, says, user

from agentic.proxy import Sampling, ScriptedReply, SessionHandle
from agentic.proxy.journal import Journal, MemoryJournal

COUNT = 150_000
"""Tokens of a reply that no socket's buffers hold: a kernel takes 4 MB for a client that reads nothing."""
REPLY = ScriptedReply((*ids_of("x") * COUNT, *ids_of("<|im_end|>")))


@asynccontextmanager
async def a_reply_under_way(rig: Rig, streamed: bool) -> AsyncIterator[socket.socket]:
    """A client that has taken nothing yet of a reply that is committed."""
    spec = a_spec(sampling=Sampling(temperature=1.0, max_tokens=2 * COUNT), max_response_tokens=4 * COUNT)
    handle: SessionHandle = await rig.server.open(spec)
    body = json.dumps({"messages": [user("hi")], "logprobs": True, "stream": streamed}).encode()
    head = f"POST /s/rollout-1/v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: {len(body)}\r\n"
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = rig.server.agent_url.removeprefix("http://").split(":")
    client.connect((host, int(port)))
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, f"{head}Authorization: Bearer {handle.api_key}\r\n\r\n".encode() + body)
    try:
        async with asyncio.timeout(20):
            while (await rig.server.metrics()).calls_answered == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        yield client
    finally:
        client.close()


async def drain(client: socket.socket) -> bytes:
    """Everything up to the end of a stream."""
    loop, got = asyncio.get_running_loop(), b""
    while not got.endswith(b"\r\n0\r\n\r\n"):
        got += await loop.sock_recv(client, 1 << 20)
    return got


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_reply_that_its_client_does_not_take_has_no_loss(tiny_folder: Path, streamed: bool) -> None:
    async with running(tiny_folder, [REPLY]) as rig, a_reply_under_way(rig, streamed):
        sealed = await rig.server.seal("rollout-1")
    assert (sealed.complete, sealed.sampled_tokens, sealed.undelivered_tokens) == (True, COUNT + 1, COUNT + 1)
    assert not any(t.has_loss for t in sealed.trajectories)


async def test_a_reply_whose_client_leaves_while_it_is_sealed_has_no_loss(tiny_folder: Path) -> None:
    async with running(tiny_folder, [REPLY]) as rig, a_reply_under_way(rig, streamed=False) as client:
        sealing = asyncio.create_task(rig.server.seal("rollout-1"))
        await asyncio.sleep(0.1)
        client.close()
        sealed = await sealing
    assert (sealed.undelivered_tokens, any(t.has_loss for t in sealed.trajectories)) == (COUNT + 1, False)


async def test_sealing_waits_for_a_client_that_takes_its_reply(tiny_folder: Path) -> None:
    async with running(tiny_folder, [REPLY]) as rig, a_reply_under_way(rig, streamed=True) as client:
        sealing = asyncio.create_task(rig.server.seal("rollout-1"))
        got = await drain(client)
        sealed = await sealing
    assert b"[DONE]" in got
    assert (sealed.undelivered_tokens, any(t.has_loss for t in sealed.trajectories)) == (0, True)


@pytest.mark.parametrize("journal", [None, MemoryJournal()], ids=["no journal", "journal"])
async def test_after_the_seal_a_retry_is_refused_like_any_call(tiny_folder: Path, journal: Journal | None) -> None:
    async with running(tiny_folder, [says("done")], journal) as rig:
        handle = await rig.server.open(a_spec())
        headers = {"Idempotency-Key": "k", "x-stainless-retry-count": "1"}
        assert (await rig.ask(handle, [user("hi")], headers)).status == 200
        assert (await rig.ask(handle, [user("hi")], headers)).status == 200
        await rig.server.seal("rollout-1")
        late = await rig.ask(handle, [user("hi")], headers)
    assert (late.status, late.body["error"]["code"]) == (410, "session_sealed")
