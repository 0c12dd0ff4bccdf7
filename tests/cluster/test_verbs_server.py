"""The same verbs through Argo's own server and through the Workflow objects: one suite, both ways."""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from argo_rig import ArgoRig, until
from stand_in_workflow import plan, stand_in, trace

from agentic.cluster.errors import AlreadyExistsError, NotFoundError
from agentic.cluster.resources import JsonObject, name_of
from agentic.cluster.settings import ClusterSettings, KubeClientSettings
from steps.contract import SUMMARY_CHARACTERS
from testbed.access import ClusterAccess
from testbed.controllers import ARGO_SERVER_PORT
from testbed.tools import Toolbox
from workflows.argo.api import GoneError, Workflows
from workflows.argo.nodes import argo_nodes, output_of, phase_of, steps_of
from workflows.argo.packing import LARGEST_BYTES, size_of
from workflows.argo.retrying import pod_name
from workflows.argo.server import ServerAddress, ServerWorkflows
from workflows.submit import main

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PORT = ARGO_SERVER_PORT + 1
SERVER = f"127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def server(cluster: ClusterAccess) -> Iterator[str]:
    """Argo's server with a certificate that it made itself; the cluster's own one speaks plain HTTP."""
    options = ("--auth-mode=client", "--secure=true", f"--port={PORT}", f"--kubeconfig={cluster.kubeconfig}")
    command = [str(Toolbox(cluster.layout).path("argo")), "server", "--namespace=argo", *options]
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or _listens(), 120)
        assert process.poll() is None, "the server ended at once"
        yield SERVER
    finally:
        process.kill()
        process.wait()


def _listens() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=5):
        return True
    return False


def token(cluster: ClusterAccess) -> str:
    """The administrator's, as a header."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    return f"Bearer {config['users'][0]['user']['token']}"


@asynccontextmanager
async def opened(way: str, argo: ArgoRig) -> AsyncIterator[Workflows]:
    if way == "objects":
        async with argo.workflows() as workflows:
            yield workflows
        return
    ways = {
        "server": {"ARGO_SERVER": SERVER, "ARGO_INSECURE_SKIP_VERIFY": "true"},
        "plain server": {"ARGO_SERVER": f"127.0.0.1:{ARGO_SERVER_PORT}", "ARGO_SECURE": "false"},
    }
    environment = {**ways[way], "ARGO_TOKEN": token(argo.cluster)}
    address = ServerAddress.find(ClusterSettings(), environment)
    assert address is not None
    transport = address.transport(None, KubeClientSettings(retry_seconds=10))
    yield ServerWorkflows(transport, argo.namespace)
    await transport.close()


async def ended(workflows: Workflows, name: str) -> JsonObject:
    seen: JsonObject = {}
    async with asyncio.timeout(240):
        async for workflow in workflows.follow(name):
            seen = workflow
    return seen


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("way", ["objects", "server", "plain server"])
async def test_a_workflow_is_made_found_followed_read_retried_and_deleted(
    argo: ArgoRig, tmp_path: Path, way: str
) -> None:
    name = "agentic-rl-both"
    plan(tmp_path, "report", "exit 78")
    document = stand_in(tmp_path, argo.namespace, "both", start_from="report")
    async with opened(way, argo) as workflows:
        with pytest.raises(NotFoundError):
            await workflows.get(name)
        assert name_of(await workflows.create(document)) == name
        with pytest.raises(AlreadyExistsError):
            await workflows.create(document)
        assert phase_of(await ended(workflows, name)) == "Failed"
        assert [name_of(found) for found in await workflows.list("agentic-rl/run=both")] == [name]
        assert await workflows.list("agentic-rl/run=other") == []
        await workflows.retry(name)
        again = await ended(workflows, name)
        assert phase_of(again) == "Succeeded"
        assert trace(tmp_path) == ["report", "cleanup", "report", "cleanup"]
        report = next(node for node in argo_nodes(again).values() if node["name"] == f"{name}.report(0)")
        pieces = [piece async for piece in workflows.log(name, pod_name(again, report), follow=True)]
        assert b"report of run both begins\nreport ends\n" in b"".join(pieces)
        with pytest.raises(NotFoundError):
            [piece async for piece in workflows.log(name, f"{name}-none-1", follow=False)]
        await workflows.stop(name)
        assert await workflows.delete(name)
        assert not await workflows.delete(name)
        with pytest.raises((NotFoundError, GoneError)):
            await ended(workflows, name)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("way", ["objects", "server"])
async def test_a_workflow_that_is_deleted_while_it_is_followed_is_gone(argo: ArgoRig, tmp_path: Path, way: str) -> None:
    plan(tmp_path, "report", "wait")
    document = stand_in(tmp_path, argo.namespace, "short", start_from="report")
    async with opened(way, argo) as workflows:
        await workflows.create(document)
        following = asyncio.create_task(ended(workflows, "agentic-rl-short"))
        while "report" not in trace(tmp_path):
            await asyncio.sleep(0.2)
        await workflows.stop("agentic-rl-short")
        await workflows.delete("agentic-rl-short")
        with pytest.raises(GoneError):
            await following


@pytest.mark.usefixtures("server")
def test_the_command_line_goes_through_a_server_that_is_set(
    argo: ArgoRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without kubectl access: what only that can do says so."""
    argo.create(stand_in(tmp_path, argo.namespace, "served", start_from="report"))
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    monkeypatch.setenv("ARGO_TOKEN", token(argo.cluster))
    monkeypatch.setenv("ARGO_INSECURE_SKIP_VERIFY", "true")
    server = [*argo.settings, f"cluster.argo_server={SERVER}"]
    assert main(["watch", "served", *server]) == 0
    said = capsys.readouterr().out
    assert f"https://{SERVER}/workflows/{argo.namespace}/agentic-rl-served" in said
    assert "cleanup            Succeeded" in said
    assert main(["cleanup", "served", *server]) == 75
    assert capsys.readouterr().err == "cleanup needs kubectl access to the cluster: set KUBECONFIG\n"


@pytest.mark.scale
@pytest.mark.timeout(1600)
def test_the_status_of_a_real_workflow_with_all_shards_stays_small(
    argo: ArgoRig, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """64 shards, as 5,000 tasks would be built: a quarter of them tried again, all with the longest outputs."""
    for index in range(64):
        again = ["exit 75"] if index % 4 == 0 else []
        plan(tmp_path, f"build-images-{index}", *again, "long")
    changes = ("cluster.parallelism=20",)
    argo.create(stand_in(tmp_path, argo.namespace, "wide", shards=64, arguments=changes))
    workflow = argo.until_over("agentic-rl-wide", 1500)
    assert phase_of(workflow) == "Succeeded"
    assert sum(name.startswith("build-images-") for name in steps_of(workflow)) == 64
    outputs = {output_of(step, "summary") for name, step in steps_of(workflow).items() if name[-1].isdigit()}
    assert outputs == {"s" * SUMMARY_CHARACTERS}
    record_property("bytes", size_of(workflow))
    record_property("nodes", len(argo_nodes(workflow)))
    assert size_of(workflow) < LARGEST_BYTES / 2
