"""Waiting on a live copy: nothing is missed, whatever happens to the stream."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.errors import ApiUnavailableError, ForbiddenError, WaitTimeoutError
from agentic.cluster.resources import CONFIG_MAPS, JsonObject
from agentic.cluster.settings import KubeClientSettings
from agentic.cluster.watching import Watcher


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer(bookmark_seconds=0.2) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    settings = KubeClientSettings(retry_seconds=5.0, watch_idle_seconds=0.8, requests_per_second=2000)
    async with KubeClient(FixedCredentials(Access(server.address)), settings) as api:
        yield api


def config(name: str, value: int = 0, **labels: str) -> JsonObject:
    return {**CONFIG_MAPS.head(name, labels=labels), "data": {"value": str(value)}}


def has(value: int) -> Any:
    return lambda body: body if body and body["data"]["value"] == str(value) else None


async def test_a_change_wakes_who_waits_for_that_object(api: KubeClient) -> None:
    async with Watcher(api, CONFIG_MAPS, labels="run=r1") as watcher:
        waiting = asyncio.create_task(watcher.wait_for("c", has(2), timeout_seconds=5))
        await api.create(CONFIG_MAPS, config("c", 1, run="r1"))
        await api.create(CONFIG_MAPS, config("other", 2, run="r2"))
        await api.patch(CONFIG_MAPS, "c", {"data": {"value": "2"}})
        assert (await waiting)["metadata"]["name"] == "c"
        assert list(watcher.objects) == ["c"]


async def test_what_was_there_before_is_seen_and_a_deletion_too(api: KubeClient) -> None:
    await api.create(CONFIG_MAPS, config("c"))
    async with Watcher(api, CONFIG_MAPS) as watcher:
        waiting = asyncio.create_task(
            watcher.wait_for("c", lambda body: True if body is None else None, timeout_seconds=5)
        )
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await api.delete(CONFIG_MAPS, "c")
        assert await waiting


async def test_a_remembered_object_is_there_at_once_and_its_deletion_is_not_undone(api: KubeClient) -> None:
    async with Watcher(api, CONFIG_MAPS) as watcher:
        made = await api.create(CONFIG_MAPS, config("c"))
        watcher.remember(made)
        assert "c" in watcher.objects
        await api.delete(CONFIG_MAPS, "c")
        await watcher.wait_until(lambda all_: True if "c" not in all_ else None, timeout_seconds=5)
        watcher.remember(made)
        assert "c" not in watcher.objects


async def test_waiting_ends_in_time_and_says_what_for(api: KubeClient) -> None:
    async with Watcher(api, CONFIG_MAPS) as watcher:
        with pytest.raises(WaitTimeoutError, match="configmaps c: not as awaited within 0 s"):
            await watcher.wait_for("c", has(1), timeout_seconds=0.1)


async def test_what_a_check_raises_is_what_waiting_raises(api: KubeClient) -> None:
    def check(body: JsonObject | None) -> None:
        raise KeyError("hopeless")

    async with Watcher(api, CONFIG_MAPS) as watcher:
        with pytest.raises(KeyError):
            await watcher.wait_for("c", check, timeout_seconds=1)


async def test_an_expired_place_is_listed_anew(api: KubeClient, server: KubeApiServer) -> None:
    server.watch_seconds = 0.1
    async with Watcher(api, CONFIG_MAPS) as watcher:
        await api.create(CONFIG_MAPS, config("gone"))
        await watcher.wait_for("gone", has(0), timeout_seconds=5)
        server.faults.append(Fault(path="watch=true", status=503, times=3))
        await api.delete(CONFIG_MAPS, "gone")
        await api.create(CONFIG_MAPS, config("c", 7))
        server.store.compact()
        await watcher.wait_for("c", has(7), timeout_seconds=5)
        assert "gone" not in watcher.objects


async def test_a_silent_stream_is_made_anew(api: KubeClient, server: KubeApiServer) -> None:
    server.bookmark_seconds = 60
    async with Watcher(api, CONFIG_MAPS):
        await asyncio.sleep(2.2)
    assert sum(request.startswith("GET") for request in server.requests) >= 3


async def test_a_refusal_of_the_first_list_reaches_those_who_wait_now_and_later(
    api: KubeClient, server: KubeApiServer
) -> None:
    server.faults = [Fault(status=403, times=10, message="no")]
    watcher = Watcher(api, CONFIG_MAPS)
    waiting = asyncio.create_task(watcher.wait_for("c", has(1), timeout_seconds=10))
    with pytest.raises(ForbiddenError):
        await watcher.start()
    for wait in (waiting, watcher.wait_for("d", has(1), timeout_seconds=10)):
        with pytest.raises(ForbiddenError):
            await wait
    await watcher.close()


@pytest.mark.parametrize("path", ["watch=true", "configmaps"])
async def test_a_refusal_after_the_first_list_passes_and_is_told_meanwhile(
    api: KubeClient, server: KubeApiServer, path: str
) -> None:
    server.watch_seconds = 0.2
    async with Watcher(api, CONFIG_MAPS) as watcher:
        fault = Fault(method="GET", path=path, status=403, times=1000, message="clusterrole not found")
        server.faults.append(fault)
        with pytest.raises(WaitTimeoutError, match="clusterrole not found"):
            await watcher.wait_for("c", has(1), timeout_seconds=1)
        fault.times = 0
        await api.create(CONFIG_MAPS, config("c", 1))
        await watcher.wait_for("c", has(1), timeout_seconds=5)
        assert watcher.trouble is None


async def test_what_no_api_server_says_ends_no_watch_in_silence() -> None:
    answers = [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>"]
    answers.append(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

    asked = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers[0])
        answers.append(answers.pop(0))
        writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    settings = KubeClientSettings(retry_seconds=0.5)
    async with listener, KubeClient(FixedCredentials(Access(address)), settings) as api:
        for _ in answers:
            with pytest.raises(ApiUnavailableError):
                await api.list(CONFIG_MAPS)
        watcher = Watcher(api, CONFIG_MAPS)
        starting = asyncio.create_task(watcher.start())
        await asyncio.sleep(1.5)
        assert not starting.done()
        assert watcher.trouble is not None
        await watcher.close()
        with pytest.raises(ApiUnavailableError, match="was closed"):
            await starting
    assert asked > 6


async def test_a_thousand_waiters_cost_one_watch(api: KubeClient, server: KubeApiServer) -> None:
    async with Watcher(api, CONFIG_MAPS) as watcher:
        names = [f"c{n}" for n in range(1000)]
        waiting = [asyncio.create_task(watcher.wait_for(name, has(0), timeout_seconds=30)) for name in names]
        started = time.process_time()
        await asyncio.gather(*(api.create(CONFIG_MAPS, config(name)) for name in names))
        assert len(await asyncio.gather(*waiting)) == 1000
        assert time.process_time() - started < 10
    assert sum("GET" in request for request in server.requests) == 2


async def test_churn_under_faults_ends_in_the_servers_own_state(api: KubeClient, server: KubeApiServer) -> None:
    server.watch_seconds = 0.15
    dice = random.Random(7)
    async with Watcher(api, CONFIG_MAPS) as watcher:
        for step in range(150):
            name = f"c{dice.randrange(12)}"
            if step % 10 == 0:
                server.faults.append(Fault(status=dice.choice([0, 429, 500, 503])))
            if step % 37 == 0:
                server.store.compact()
            if dice.random() < 0.3:
                await api.delete(CONFIG_MAPS, name)
            else:
                watcher.remember(await api.apply(CONFIG_MAPS, config(name, step)))
        server.faults.clear()
        want = {key[2]: body["data"] for key, body in server.store.objects.items()}
        await watcher.wait_until(
            lambda all_: True if {name: body["data"] for name, body in all_.items()} == want else None,
            timeout_seconds=10,
        )
