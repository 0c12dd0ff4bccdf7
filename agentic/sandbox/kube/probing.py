"""Whether a sandbox reaches the proxy's port, and no other of the proxy's pod, tried without a proxy.

A pod of the probe's own stands where the proxy would: it has the labels of `sandbox.proxy_selector`, runs the base
image and listens on two ports, of which one is the proxy's. It belongs to the lease of the sandbox that tries, so that
it goes with it, whatever becomes of us.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import ForbiddenError, NotFoundError
from agentic.cluster.labels import PART, PART_LABEL, RUN_LABEL
from agentic.cluster.resources import PODS, JsonObject, uid_of
from agentic.errors import AgenticError
from agentic.sandbox.base import Sandbox
from agentic.sandbox.kube.manifests import NEXT_TO_NOTHING, proxy_labels, sandbox_pod_spec
from agentic.sandbox.kube.names import SANDBOX_LABEL, object_name
from agentic.sandbox.settings import KubeSandbox

LISTEN = """
import socket, sys, time
both = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
servers = [socket.create_server(("", int(port)), **both) for port in sys.argv[1:]]
time.sleep(300)
"""
CONNECT = """
import socket, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
until = time.monotonic() + seconds
while True:
    try:
        socket.create_connection((host, port), 2).close()
        sys.exit(0)
    except OSError as error:
        if time.monotonic() > until:
            sys.exit(str(error))
    time.sleep(0.2)
"""
PATIENCE_SECONDS = 60.0
"""For the pod to run; and for the policy to learn of it, which some network plug-ins take their time for."""
TRY_SECONDS = 3.0
"""For a port that has to be closed."""
LAST_PORT = 65535


async def try_proxy_port(
    api: KubeApi, settings: KubeSandbox, port: int, sandbox: Sandbox, patience_seconds: float = PATIENCE_SECONDS
) -> tuple[bool | None, str]:
    """Whether the promise is kept, and what was seen; None when it cannot be tried with these rights."""
    name, other_port = object_name(sandbox.spec.sandbox_id, "stands for the proxy"), next_to(port)
    lease = await _lease_of(api, sandbox)
    try:
        pod = await api.create(PODS, _listener(settings, name, sandbox.spec.run_id, port, lease))
    except ForbiddenError:
        return None, "not tried: the account may make no pod to stand for the proxy"
    try:
        address = await _address(api, name)
        reached = await _connect(sandbox, address, port, patience_seconds)
        other = await _connect(sandbox, address, other_port, TRY_SECONDS)
    except TimeoutError:
        return None, "not tried: the pod that stands for the proxy did not run in time"
    finally:
        with contextlib.suppress(AgenticError):  # The lease removes it, and what was found stays found.
            await api.delete(PODS, name, uid=uid_of(pod))
    if reached:
        return False, f"port {port} of a pod with the proxy's labels does not answer: {reached}"
    if not other:
        return False, f"port {other_port} of the same pod answers too"
    return True, f"port {port} answers, port {other_port} does not"


def next_to(port: int) -> int:
    """Another port, which has to be closed."""
    return port + 1 if port < LAST_PORT else port - 1


def _listener(settings: KubeSandbox, name: str, run_id: str, port: int, lease: list[JsonObject]) -> JsonObject:
    spec = sandbox_pod_spec(
        settings.model_copy(update={"exec_server_image": None}), settings.base_image, NEXT_TO_NOTHING, lease_seconds=300
    )
    spec["containers"][0]["command"] = ["python3", "-S", "-E", "-c", LISTEN, str(port), str(next_to(port))]
    labels: Mapping[str, str] = {PART_LABEL: PART, RUN_LABEL: run_id, **proxy_labels(settings, run_id)}
    return {**PODS.head(name, labels=labels, ownerReferences=lease), "spec": spec}


async def _lease_of(api: KubeApi, sandbox: Sandbox) -> list[JsonObject]:
    """What the sandbox's own pod belongs to."""
    name = object_name(sandbox.spec.sandbox_id, sandbox.spec.run_id)
    found = (await api.list(PODS, labels=f"{SANDBOX_LABEL}={name}")).items
    owners: list[JsonObject] = found[0]["metadata"].get("ownerReferences", []) if found else []
    return [{key: value for key, value in owner.items() if key != "controller"} for owner in owners]


async def _address(api: KubeApi, name: str) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            status = await _status(api, name)
            if status.get("phase") == "Running" and status.get("podIP"):
                return str(status["podIP"])
            await asyncio.sleep(0.2)


async def _status(api: KubeApi, name: str) -> JsonObject:
    try:
        status: JsonObject = (await api.get(PODS, name)).get("status", {})
    except NotFoundError:
        return {}
    return status


async def _connect(sandbox: Sandbox, address: str, port: int, seconds: float) -> str:
    """Why not; empty when it answers."""
    began = time.monotonic()
    words = ["python3", "-S", "-E", "-c", CONNECT, address, str(port), str(seconds)]
    result = await sandbox.exec(words, timeout_seconds=seconds + 10)
    if result.exit_code == 0:
        return ""
    return result.error_text.strip()[-100:] or f"no answer in {time.monotonic() - began:.0f} s"
