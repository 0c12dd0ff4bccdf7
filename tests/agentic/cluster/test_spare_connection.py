"""Commands that follow each other find a connection that was opened while the one before ran."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kube_api import KubeApiServer
from yarl import URL

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import PODS
from agentic.sandbox.kube.execution import ExecRequest
from agentic.sandbox.kube.pod_exec import PodExec, PodTarget


class SlowRoad:
    """Between a client and a server, where opening a connection takes its time."""

    def __init__(self, server: KubeApiServer) -> None:
        self._server = URL(server.address)
        self.requests = server.requests
        self.seconds = 0.0
        self.is_closed = False
        self.opened = 0
        self.open = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            await server.wait_closed()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_closed:
            writer.close()
            return
        self.opened += 1
        self.open += 1
        await asyncio.sleep(self.seconds)
        theirs, ours = await asyncio.open_connection(self._server.host, self._server.port)
        await asyncio.gather(pass_on(reader, ours), pass_on(theirs, writer))
        self.open -= 1


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def pod_at_the_end_of_a_road() -> AsyncIterator[tuple[SlowRoad, PodExec]]:
    async with KubeApiServer() as server:
        road = SlowRoad(server)
        async with road.listening() as address, KubeClient(FixedCredentials(Access(address))) as api:
            await api.create(PODS, {**PODS.head("p"), "spec": {"containers": [{"name": "main"}]}})
            pod = PodExec(api, PodTarget("p", "main"))
            await pod.run(ExecRequest("true", 30.0))
            yield road, pod
            await pod.close()
        async with asyncio.timeout(5):
            while road.open:
                await asyncio.sleep(0.01)


async def test_a_command_does_not_wait_for_a_connection_when_the_one_before_has_made_it_ready() -> None:
    async with pod_at_the_end_of_a_road() as (road, pod):
        road.seconds = 0.7
        opened = road.opened
        for _ in range(3):
            await asyncio.sleep(1.0)
            started = time.monotonic()
            assert (await pod.run(ExecRequest("echo hi", 30.0))).text == "hi\n"
            assert time.monotonic() - started < 0.6
        await asyncio.sleep(0.1)
        assert road.opened - opened <= 4, "one for each command, and one that is ready"


async def test_commands_at_the_same_moment_make_no_more_connections_than_one_each_and_one() -> None:
    async with pod_at_the_end_of_a_road() as (road, pod):
        opened = road.opened
        results = await asyncio.gather(*(pod.run(ExecRequest("sleep 0.5", 30.0)) for _ in range(12)))
        assert {result.exit_code for result in results} == {0}
        await asyncio.sleep(0.2)
        assert road.opened - opened <= 13


async def test_a_connection_that_cannot_be_made_ready_is_missed_by_nobody() -> None:
    async with pod_at_the_end_of_a_road() as (road, pod):
        road.is_closed = True
        running = asyncio.create_task(pod.run(ExecRequest("sleep 0.5; echo ended", 30.0)))
        await asyncio.sleep(1.0)
        assert (await running).text == "ended\n"
        road.is_closed = False
        assert (await pod.run(ExecRequest("echo hi", 30.0))).text == "hi\n"


async def test_a_command_costs_the_api_server_one_request_and_nothing_besides() -> None:
    async with pod_at_the_end_of_a_road() as (road, pod):
        asked = len(road.requests)
        for number in range(5):
            assert (await pod.run(ExecRequest(f"exit {number}", 30.0))).exit_code == number
        assert road.requests[asked:] == ["GET /api/v1/namespaces/default/pods/p/exec"] * 5
