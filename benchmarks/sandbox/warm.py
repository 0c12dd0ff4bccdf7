"""A warm sandbox out of an OpenKruise pool: ours, ACKEnvironment, and the bare claim, all answered by the stand-in.

The bare claim is what nobody can be faster than: one request that creates it, and the event that says it is completed.
"""

import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.resources import JsonObject, Resource
from agentic.sandbox.base import Sandbox
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.settings import KruiseSandbox, PoolSettings
from benchmarks.sandbox.measuring import Times, WrongResultError
from benchmarks.sandbox.rounds import IMAGE, Bench
from benchmarks.sandbox.ways import Ack, spec_of

CLAIMS = Resource("agents.kruise.io", "v1alpha1", "sandboxclaims", "SandboxClaim")
SANDBOXES = Resource("agents.kruise.io", "v1alpha1", "sandboxes", "Sandbox")
POOL_SECONDS = 120.0
CRDS = Path(__file__).parents[2] / "tests/crds"


async def measure_warm(bench: Bench) -> dict[str, Any]:
    """One after the other, each time from a full pool."""
    bench.cluster.install_crds(CRDS.glob("*.agents.kruise.io.yaml"))
    namespace, claims = bench.namespace, bench.plan.claims
    async with controller(namespace), KubeClient(LoadedCredentials(), namespace=namespace) as api:
        ours, bare = await measure_ours(api, namespace, IMAGE, claims)
        bench.say(f"  bare claim {bare}, ours {ours}")
        return {"bare claim": bare, "ours": ours, "ACKEnvironment": await measure_ack(api, namespace, IMAGE, claims)}


@contextlib.asynccontextmanager
async def controller(namespace: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.sandbox.controller", namespace),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"plays\n":
            raise WrongResultError("the stand-in controller did not start")
        yield
    finally:
        process.stdin.close()
        await process.wait()


async def measure_ours(api: KubeClient, namespace: str, image: str, claims: int) -> tuple[Any, Any]:
    pool = PoolSettings(by="class", minimum=2, idle_seconds=3600)
    fields: dict[str, Any] = {"request_cpus": 0.001, "request_memory_mb": 8, "scratch_mb": 512}
    settings = KruiseSandbox(namespace=namespace, base_image=image, pool=pool, **fields)
    provider = make_provider(settings, open_store(Path("/nonexistent"), settings))
    times, bare, held = Times(), Times(), list[Sandbox]()
    try:
        held.append(await provider.acquire(spec_of("first", image)))
        for number in range(claims):
            await wait_for_spare(api)
            held.append(await times.take(provider.acquire(spec_of(f"warm-{number}", image))))
            await bare.take(claim_bare(api, await wait_for_spare(api)))
            await held.pop().release()
    finally:
        await provider.close()
    return times.summary(), bare.summary()


async def wait_for_spare(api: KubeClient, wanted: int = 1) -> str:
    """Until a pool has ready sandboxes that nobody claimed; the pool's name."""
    async with asyncio.timeout(POOL_SECONDS):
        while True:
            found = [body for body in (await api.list(SANDBOXES)).items if is_spare(body)]
            if len(found) >= wanted:
                return str(found[0]["metadata"]["ownerReferences"][0]["name"])
            await asyncio.sleep(0.1)


def is_spare(sandbox: JsonObject) -> bool:
    owners = sandbox["metadata"].get("ownerReferences", [])
    conditions = sandbox.get("status", {}).get("conditions", [])
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return is_ready and any(owner["kind"] == "SandboxSet" for owner in owners)


async def claim_bare(api: KubeClient, pool: str) -> None:
    name = f"bare-{uuid.uuid4().hex[:8]}"
    spec = {"templateName": pool, "replicas": 1, "skipInitRuntime": True, "ttlAfterCompleted": "5s"}
    claim = await api.create(CLAIMS, {**CLAIMS.head(name), "spec": spec})
    version = claim["metadata"]["resourceVersion"]
    async for event in api.watch(CLAIMS, resource_version=version, fields=f"metadata.name={name}"):
        if event.body.get("status", {}).get("phase") == "Completed":
            break
    for sandbox in (await api.list(SANDBOXES, labels=f"agents.kruise.io/claim-name={name}")).items:
        await api.delete(SANDBOXES, sandbox["metadata"]["name"])


async def measure_ack(api: KubeClient, namespace: str, image: str, claims: int) -> dict[str, Any]:
    times = Times()
    async with Ack(namespace, image, use_sandbox_claim=True, sandboxset_replicas=2) as ack:
        await ack.start(0, environment_name="ack-warm")
        for number in range(1, claims + 1):
            await wait_for_spare(api)
            await times.take(ack.start(number, environment_name="ack-warm"))
    return times.summary()
