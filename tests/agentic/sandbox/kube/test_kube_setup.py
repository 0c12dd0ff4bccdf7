"""From nothing to the first sandbox of a cluster: the rights are printed, what is missing is named all at once."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_api import Fault
from kube_rig import KINDS, Rig, memory_rig
from kube_store import Refusal

from agentic.cluster.access import REVIEWS
from agentic.cluster.api import KubeApi
from agentic.cluster.resources import EVENTS, JOBS, PODS, JsonObject, Resource
from agentic.sandbox.base import ImageReference
from agentic.sandbox.kube.leases import take_lease
from agentic.sandbox.kube.pool_size import PoolSize
from agentic.sandbox.kube.provider import KubeProvider
from agentic.sandbox.kube.rights import sandbox_rules
from agentic.sandbox.providers import make_source

ROOT = Path(__file__).parents[4]


async def command(*words: str, env: dict[str, str] | None = None) -> tuple[int | None, str, str]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentic.sandbox", *words),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", **(env or {})},
    )
    out, err = await child.communicate()
    return child.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_account_that_sandboxes_need_is_printed_for_kubectl(kind: str) -> None:
    code, printed, _ = await command("account", "--provider", kind, "namespace=rl")
    account, role, binding = yaml.safe_load_all(printed)
    assert code == 0
    assert [body["kind"] for body in (account, role, binding)] == ["ServiceAccount", "Role", "RoleBinding"]
    assert {body["metadata"]["namespace"] for body in (account, role, binding)} == {"rl"}
    assert any("pods/exec" in rule["resources"] for rule in role["rules"])
    makes_pods = any(rule["resources"] == ["pods"] and "create" in rule["verbs"] for rule in role["rules"])
    assert makes_pods == (kind == "pod"), "who makes pods may mount any Secret of the namespace"


async def test_an_account_needs_a_namespace() -> None:
    code, _, said = await command("account", "--provider", "pod")
    assert code == 78
    assert "namespace=NAME" in said


def allow(rig: Rig, *refused: tuple[str, str]) -> None:
    """Play the API server's authorizer for access reviews."""
    assert rig.server is not None

    def review(verb: str, plural: str, body: JsonObject) -> JsonObject:
        if plural != REVIEWS.name:
            return body
        right = body["spec"]["resourceAttributes"]
        return {**body, "status": {"allowed": (right["verb"], right["resource"]) not in refused}}

    rig.server.store.admit.append(review)


def kubeconfig(rig: Rig, folder: Path) -> dict[str, str]:
    assert rig.server is not None
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
        "clusters": [{"name": "c", "cluster": {"server": rig.server.address}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(json.dumps(config))
    return {"KUBECONFIG": str(path)}


async def check(rig: Rig, kind: str, folder: Path, *settings: str) -> tuple[int | None, list[str]]:
    image = "base_image=agentic/base:local"
    words = ("check", "--provider", kind, image, *settings)
    code, out, err = await command(*words, env=kubeconfig(rig, folder))
    assert err == "", err[-3000:]
    return code, out.splitlines()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cluster_that_has_everything_runs_a_first_command(kind: str, tmp_path: Path) -> None:
    async with memory_rig(kind) as rig:
        allow(rig)
        assert await check(rig, kind, tmp_path) == (0, [f"ok       a sandbox of provider {kind} ran a command"])
        assert (await rig.admin.list(JOBS)).items == ()


async def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    async with memory_rig("kruise") as rig:
        assert rig.server is not None
        allow(rig, ("create", "jobs"), ("patch", "networkpolicies"))
        gone = Fault(path="sandbox(sets|claims|es)", status=404, times=100, message="could not find the resource")
        rig.server.faults.append(gone)

        def refuse(verb: str, plural: str, body: JsonObject) -> JsonObject:
            if plural == JOBS.name:
                raise Refusal(403, "Forbidden", 'admission webhook "limits.example" denied the request: no limits')
            return body

        rig.server.store.admit.append(refuse)
        code, lines = await check(rig, "kruise", tmp_path)
        assert code == 78
        assert len(lines) == 3
        assert (
            "lacks rights in namespace default: create jobs.batch, patch networkpolicies.networking.k8s.io" in lines[0]
        )
        assert "python -m agentic.sandbox account --provider kruise namespace=default | kubectl apply -f -" in lines[0]
        assert "SandboxSet (agents.kruise.io/v1alpha1): install OpenKruise Agents" in lines[1]
        assert "set sandbox.provider=pod" in lines[1]
        assert "no limits" in lines[2]


async def test_a_namespace_that_refuses_our_pods_is_told_before_a_run(tmp_path: Path) -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        allow(rig)

        def refuse(verb: str, plural: str, body: JsonObject) -> JsonObject:
            if plural == "pods":
                raise Refusal(403, "Forbidden", 'pods "x" is forbidden: violates PodSecurity "restricted:latest"')
            return body

        rig.server.store.admit.append(refuse)
        code, (line,) = await check(rig, "pod", tmp_path)
        assert code == 78
        assert "violates PodSecurity" in line


async def test_a_controller_that_does_not_answer_is_told_within_its_patience(tmp_path: Path) -> None:
    async with memory_rig("kruise") as rig:
        assert rig.controller is not None
        allow(rig)
        rig.controller.is_claiming = False
        code, (line,) = await check(rig, "kruise", tmp_path, "start_timeout_seconds=0.5")
        assert code == 78
        assert "was not claimed in time: the controller has not answered" in line


VERBS = {"create": ("create", "get"), "apply": ("create", "patch"), "exec": ("create", "get")}
"""Rights that a method of `KubeApi` needs, where that is not the one of its name."""


class RecordingApi:
    """Notes the rights that calls need, and passes them on."""

    def __init__(self, api: KubeApi, used: set[tuple[str, str, str]]) -> None:
        self._api, self._used = api, used

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if name in ("namespace", "close"):
            return found

        def call(*words: Any, **more: Any) -> Any:
            resource: Resource = PODS if name == "exec" else words[0]
            part = {"exec": "exec", "patch_scale": "scale"}.get(name) or more.get("subresource")
            plural = f"{resource.plural}/{part}" if part else resource.plural
            for verb in VERBS.get(name, ("patch",) if name == "patch_scale" else (name,)):
                self._used.add((resource.group, plural, verb))
            return found(*words, **more)

        return call


@asynccontextmanager
async def recorded(rig: Rig, used: set[tuple[str, str, str]]) -> AsyncIterator[KubeProvider]:
    async def connect() -> KubeApi:
        recording: Any = RecordingApi(rig.connect(), used)
        return recording  # type: ignore[no-any-return]

    settings: Any = rig.settings
    provider = KubeProvider(settings, connect, lambda api: make_source(settings, api))
    try:
        yield provider
    finally:
        await provider.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_rights_are_those_that_are_used_and_no_others(kind: str) -> None:
    used: set[tuple[str, str, str]] = set()
    pool = {} if kind == "pod" else {"pool": {"by": "task", "replicas": 2, "idle_seconds": 0.2}}
    async with memory_rig(kind, renew_seconds=0.1, start_timeout_seconds=2, **pool) as rig:
        assert rig.server is not None
        async with recorded(rig, used) as provider:
            sandbox = await provider.acquire(rig.spec("one", workdir="/app"))
            for one in provider._in_use.values():
                one.taken = type(one.taken)(one.taken.pod, take_lease(60, 0.0))
            await provider.renew_due()
            await provider.expect(rig.run_id, [ImageReference("a:1")])
            if kind != "pod":
                await lose_the_lease(rig, provider)
            await sandbox.release()
            await provider.sweep(rig.run_id)
            await asyncio.sleep(0.5)
    rules = sandbox_rules(rig.settings)
    granted = {
        (rule["apiGroups"][0], plural, verb) for rule in rules for plural in rule["resources"] for verb in rule["verbs"]
    }
    used |= {(EVENTS.group, EVENTS.plural, "list")}
    assert used == granted


async def lose_the_lease(rig: Rig, provider: KubeProvider) -> None:
    """Pools are then saved from going with it, and scaled."""
    source: Any = provider._source
    (pool,) = source.pools._pools.values()
    pool.lease = "another"
    await source.pools.repair(pool)
    pool.size = PoolSize(1)
    await source.pools.look()
