"""What goes wrong on the way to an Argo server, against one on a script that speaks as grpc-gateway does."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentic.cluster.errors import AlreadyExistsError, ApiUnavailableError
from agentic.cluster.resources import JsonObject
from agentic.cluster.settings import KubeClientSettings
from workflows.argo.server import ServerAddress, ServerWorkflows, read_message
from workflows.errors import ClusterUnreachableError, CommandError
from workflows.settings import load_settings
from workflows.submission import connected

type Handler = Callable[[web.Request], Any]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app)
    await server.start_server()
    yield f"{server.host}:{server.port}"
    await server.close()


@asynccontextmanager
async def workflows_at(address: str) -> AsyncIterator[ServerWorkflows]:
    found = ServerAddress.find(load_settings("demo", [f"cluster.argo_server=http://{address}"], {}).cluster, {})
    assert found is not None
    transport = found.transport(None, KubeClientSettings(retry_seconds=1))
    yield ServerWorkflows(transport, "rl")
    await transport.close()


def workflow(version: str, *, is_over: bool = False) -> JsonObject:
    labels = {"workflows.argoproj.io/completed": "true"} if is_over else {}
    return {"metadata": {"name": "first", "resourceVersion": version, "labels": labels}}


def streamed(*messages: Any) -> web.Response:
    lines = [message if isinstance(message, str) else json.dumps(message) for message in messages]
    return web.Response(text="".join(f"data: {line}\n\n" for line in lines), content_type="text/event-stream")


BROKEN = {"error": {"grpc_code": 14, "http_code": 503, "message": "etcd leader\nchanged"}}


@pytest.mark.parametrize("trouble", [BROKEN, {"error": "gone"}, '{"result": {"ty', {"result": {}}, {"result": None}])
async def test_a_stream_that_breaks_is_opened_again_and_the_workflow_followed_to_its_end(trouble: Any) -> None:
    streams = [
        [{"result": {"type": "MODIFIED", "object": workflow("2")}}, trouble],
        [{"result": {"type": "MODIFIED", "object": workflow("4", is_over=True)}}],
    ]
    gets = iter([workflow("1"), workflow("3")])

    async def answer(request: web.Request) -> web.Response:
        if "workflow-events" in request.path:
            return streamed(*streams.pop(0))
        return web.json_response(next(gets))

    async with served(answer) as address, workflows_at(address) as workflows:
        seen = [found["metadata"]["resourceVersion"] async for found in workflows.follow("first")]
    assert seen == ["1", "2", "3", "4"]


async def test_a_log_that_the_server_breaks_off_is_an_error_and_not_its_end() -> None:
    async def answer(request: web.Request) -> web.Response:
        return streamed({"result": {"content": "step 1", "podName": "x"}}, BROKEN)

    async with served(answer) as address, workflows_at(address) as workflows:
        pieces = workflows.log("first", "x", follow=False)
        assert await anext(pieces) == b"step 1\n"
        with pytest.raises(ApiUnavailableError, match="the stream broke: etcd leader changed"):
            await anext(pieces)


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_create_whose_answer_got_lost_is_told_from_a_name_that_is_taken(is_ours: bool) -> None:
    held: list[JsonObject] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(held[0])
        if held:
            return web.json_response({"code": 6, "message": "already exists"}, status=409)
        held.append((await request.json())["workflow"] if is_ours else workflow("1"))
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with served(answer) as address, workflows_at(address) as workflows:
        if is_ours:
            assert (await workflows.create(workflow("1")))["metadata"]["name"] == "first"
        else:
            with pytest.raises(AlreadyExistsError):
                await workflows.create(workflow("1"))


def test_what_a_broken_stream_says_is_one_line() -> None:
    with pytest.raises(ApiUnavailableError) as caught:
        read_message(json.dumps(BROKEN).encode(), "watch")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[x", "127.0.0.1:99999", "a" * 64 + ".example:2746"])
async def test_a_server_that_is_not_there_is_said_within_seconds_with_ways_on(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    settings = load_settings("demo", [f"cluster.argo_server=http://{address}"], {}).cluster
    with pytest.raises(ClusterUnreachableError) as caught:
        async with connected(settings, {}):
            pass
    said = str(caught.value)
    assert said.startswith(f"no Argo server answers at http://{address}")
    assert "leave them out to go by kubectl access" in said
    assert said.endswith("run on this machine with python3 workflows/submit.py local")
    assert "\n" not in said


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_lets_nobody_in_names_the_token(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")

    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"code": 16, "message": "token not valid"}, status=status)

    async with served(refuse) as address:
        settings = load_settings("demo", [f"cluster.argo_server=http://{address}"], {}).cluster
        with pytest.raises(CommandError, match=f"the Argo server at http://{address} refuses: .*: set ARGO_TOKEN"):
            async with connected(settings, {}):
                pass


@pytest.mark.parametrize("file", ["/nonexistent", "{text}"])
async def test_an_authority_that_is_none_is_named_by_its_setting(file: str, tmp_path: Any) -> None:
    text = tmp_path / "ca.pem"
    text.write_text("no certificate")
    given = ["cluster.argo_server=127.0.0.1:1", f"cluster.argo_server_ca={file.format(text=text)}"]
    found = ServerAddress.find(load_settings("demo", given, {}).cluster, {})
    assert found is not None
    with pytest.raises(CommandError, match=r"^cluster\.argo_server_ca is \S+, which holds no certificates"):
        found.transport(None, KubeClientSettings())
