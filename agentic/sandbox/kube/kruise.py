"""OpenKruise Agents: a SandboxSet as pool, and a SandboxClaim for each sandbox.

A warm sandbox of the right class takes the task's image in place when it is claimed, so that one pool serves all tasks;
pools of one task each are the other setting. The claimed Sandbox is found by the label that the controller writes onto
it, and exactly one has to carry it. Deleting a claim leaves its Sandbox alive, so that giving back deletes the Sandbox
too; until then it belongs to our lease, and ends at its own shutdownTime.
"""

import asyncio
import contextlib
import re
import time

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import WaitTimeoutError
from agentic.cluster.labels import ROLE_LABEL, ROLE_SANDBOX
from agentic.cluster.resources import JsonObject, Resource, name_of, uid_of
from agentic.cluster.watching import Watcher
from agentic.errors import AgenticError
from agentic.sandbox.errors import SandboxStartError
from agentic.sandbox.kube.claims import (
    ClaimState,
    ClaimVerdict,
    judge_in_place_update,
    judge_kruise_claim,
    only_claimed,
)
from agentic.sandbox.kube.ending import to_its_end, together
from agentic.sandbox.kube.leases import Lease, rfc3339, take_lease
from agentic.sandbox.kube.manifests import (
    owned_by,
    run_labels,
    sandbox_pod_spec,
)
from agentic.sandbox.kube.mutations import require_isolated
from agentic.sandbox.kube.names import CONTAINER, SANDBOX_LABEL, selector
from agentic.sandbox.kube.pools import Pool, PoolKey, Pools
from agentic.sandbox.kube.source import Made, Order, Taken
from agentic.sandbox.kube.starting import PodStart
from agentic.sandbox.settings import KruiseSandbox

ANSWER_SECONDS = 10.0
"""For the controller to say that a claim's time is over; its words are better than ours."""
LATE_CLAIM_SECONDS = (1.0, 5.0, 25.0)
"""Pauses before we look whether a claim that was given up got a sandbox after all."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
"""Between claims that were refused for want of a pool that is there."""
CLAIM_NAME_LABEL = "agents.kruise.io/claim-name"
"""Written by the controller onto the Sandbox that a claim got, whatever the API group is called."""


def sandbox_set(settings: KruiseSandbox, pool: Pool, kind: Resource) -> JsonObject:
    """A pool. Its pods have no deadline of their own, since they may wait for long."""
    labels = run_labels(pool.owner.run_id, pool.owner.name)
    template = {
        "metadata": {"labels": {**labels, ROLE_LABEL: ROLE_SANDBOX}},
        "spec": sandbox_pod_spec(settings, pool.key.image, pool.key.resources, restarts=settings.pool.by == "class"),
    }
    head = kind.head(pool.name, labels=labels, ownerReferences=owned_by(pool.owner.lease))
    return {**head, "spec": {"replicas": pool.size.replicas, "template": template}}


def sandbox_claim(settings: KruiseSandbox, order: Order, pool: Pool, kind: Resource, now: float) -> JsonObject:
    """A claim of one sandbox, which takes the order's image in place when the pool has another."""
    labels = run_labels(order.owner.run_id, order.owner.name, **{SANDBOX_LABEL: order.name})
    timeout = f"{int(settings.start_timeout_seconds)}s"
    spec: JsonObject = {
        "templateName": pool.name,
        "replicas": 1,
        "claimTimeout": timeout,
        "waitReadyTimeout": timeout,
        "createOnNoStock": True,
        "skipInitRuntime": True,
        "shutdownTime": rfc3339(now + settings.lease_seconds),
        "ttlAfterCompleted": f"{settings.lease_seconds}s",
        "labels": labels,
    }
    if order.image != pool.key.image:
        spec["inplaceUpdate"] = {"image": order.image}
    head = kind.head(order.name, labels=labels, ownerReferences=owned_by(order.owner.lease))
    return {**head, "spec": spec}


def pool_key(settings: KruiseSandbox, order: Order) -> PoolKey:
    if settings.pool.by == "task":
        return PoolKey(order.owner.name, order.image, order.resources, image_name(order.image))
    readable = f"agentic-{order.resources.name}"
    return PoolKey(order.owner.name, settings.base_image, order.resources, readable)


def image_name(reference: str) -> str:
    """The last part of a reference's repository: `r.io/swe-bench/astropy__astropy-12907:v1` → that of the task."""
    return re.split(r"[:@]", reference.rpartition("/")[2])[0]


class PoolUnseenError(SandboxStartError):
    """A claim's controller saw no pool when it looked, and looks once."""


class KruiseSource:
    """Claims sandboxes of SandboxSets."""

    def __init__(self, api: KubeApi, settings: KruiseSandbox) -> None:
        group, version = settings.api_group, settings.api_version
        self._sandboxes = Resource(group, version, "sandboxes", "Sandbox")
        self._claims = Resource(group, version, "sandboxclaims", "SandboxClaim")
        self._sets = Resource(group, version, "sandboxsets", "SandboxSet")
        self.kinds: tuple[Resource, ...] = (self._claims, self._sandboxes, self._sets)
        self._api, self._settings = api, settings
        self._pools = Pools(api, settings.pool, lambda pool: [(self._sets, sandbox_set(settings, pool, self._sets))])
        self._made = Made(api, self._claims)
        self._used: dict[str, Pool] = {}
        self._got: dict[str, tuple[str, str]] = {}
        self._watchers: dict[tuple[str, str], Watcher] = {}
        self._looking: set[asyncio.Task[None]] = set()

    @property
    def pools(self) -> Pools:
        return self._pools

    async def take(self, order: Order) -> Taken:
        """See `Source.take`."""
        pool = await self._pools.enter(order.owner, pool_key(self._settings, order))
        is_taken = False
        try:
            now = time.time()
            sandbox = await self._claimed(order, pool, now)
            adopting = to_its_end(self._adopt(order, sandbox))
            _, pod = await together(adopting, self._await_pod(order, sandbox, pool.key.image))
            is_taken = True
            return Taken(name_of(pod), take_lease(self._settings.lease_seconds, now))
        finally:
            if is_taken:
                self._pools.settle(pool)
                self._used[order.name] = pool
            else:
                self._pools.leave(pool, was_taken=False)

    async def _claimed(self, order: Order, pool: Pool, now: float) -> JsonObject:
        """A claim that failed because its pool was gone, or is not known to the controller yet, is made again."""
        last_start = time.monotonic() + self._settings.start_timeout_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            claim = await to_its_end(self._create(order, pool, now))
            try:
                return await self._await_sandbox(order, claim)
            except SandboxStartError as error:
                was_gone = await self._pools.repair(pool)
                may_pass = was_gone or isinstance(error, PoolUnseenError)
                if not may_pass or time.monotonic() + pause > last_start:
                    raise
            await self._api.delete(self._claims, order.name, uid=uid_of(claim))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _create(self, order: Order, pool: Pool, now: float) -> JsonObject:
        claims = await self._watch(order, self._claims)
        body = sandbox_claim(self._settings, order, pool, self._claims, now)
        claim = await self._made.create(body)
        claims.remember(claim)
        return claim

    async def _watch(self, order: Order, kind: Resource) -> Watcher:
        key = (order.owner.name, kind.plural)
        if key not in self._watchers:
            self._watchers[key] = Watcher(self._api, kind, labels=selector(owner=order.owner.name))
        await self._watchers[key].start()
        return self._watchers[key]

    async def _await_sandbox(self, order: Order, claim: JsonObject) -> JsonObject:
        claims = await self._watch(order, self._claims)
        last = ClaimVerdict(ClaimState.WAITING)

        def look(body: JsonObject | None) -> ClaimVerdict | None:
            nonlocal last
            last = judge_kruise_claim(body)
            return None if last.state is ClaimState.WAITING else last

        try:
            seconds = self._settings.start_timeout_seconds
            verdict = await claims.wait_for(order.name, look, timeout_seconds=seconds + min(seconds, ANSWER_SECONDS))
        except WaitTimeoutError as error:
            raise SandboxStartError(f"sandbox {order.name} was not claimed in time: {last.reason or error}") from error
        if verdict.state is ClaimState.FAILED:
            failure = PoolUnseenError if verdict.may_pass else SandboxStartError
            raise failure(f"sandbox {order.name} was not started: {verdict.reason}")
        found = await self._api.list(self._sandboxes, labels=f"{CLAIM_NAME_LABEL}={order.name}")
        sandbox = only_claimed(claim, found.items)
        self._got[order.name] = (name_of(sandbox), uid_of(sandbox))
        return sandbox

    async def _adopt(self, order: Order, sandbox: JsonObject) -> None:
        """From now on it goes with our lease: nothing owns a claimed Sandbox."""
        patch = {"metadata": {"ownerReferences": owned_by(order.owner.lease), "uid": uid_of(sandbox)}}
        await self._api.patch(self._sandboxes, name_of(sandbox), patch)

    async def _await_pod(self, order: Order, sandbox: JsonObject, before: str) -> JsonObject:
        verdict = judge_in_place_update(sandbox, order.image)
        if verdict.state is ClaimState.FAILED:
            raise SandboxStartError(f"sandbox {order.name} was not started: {verdict.reason}")
        start = PodStart(self._api, order, self._settings, name_of(sandbox), is_known=False)
        pod = await start.wait(lambda pod: has_image(pod, order.image, before))
        require_isolated(order.name, sandbox_pod_spec(self._settings, order.image, order.resources), pod["spec"])
        return pod

    async def renew(self, order: Order, taken: Taken, lease: Lease) -> None:
        """See `Source.renew`."""
        await self._api.patch(self._sandboxes, taken.pod, {"spec": {"shutdownTime": rfc3339(lease.expires)}})

    async def give_back(self, order: Order) -> None:
        """See `Source.give_back`."""
        pool = self._used.pop(order.name, None)
        if pool is not None:
            self._pools.leave(pool, was_taken=True)
        if not self._made.knows(order):
            return
        await self._made.delete(order)
        got = self._got.get(order.name)
        if got is not None:
            await self._api.delete(self._sandboxes, got[0], uid=got[1])
        else:
            await self._delete_sandboxes(f"{CLAIM_NAME_LABEL}={order.name}")
            again = asyncio.create_task(self._look_again(order.name), name=f"look again {order.name}")
            self._looking.add(again)
            again.add_done_callback(self._looking.discard)
        self._got.pop(order.name, None)
        self._made.forget(order.name)

    async def _delete_sandboxes(self, labels: str) -> None:
        for sandbox in (await self._api.list(self._sandboxes, labels=labels)).items:
            await self._api.delete(self._sandboxes, name_of(sandbox), uid=uid_of(sandbox))

    async def _look_again(self, claim: str) -> None:
        """A controller that was at work on a claim when it was deleted gives it a sandbox all the same."""
        for pause in LATE_CLAIM_SECONDS:
            await asyncio.sleep(pause)
            with contextlib.suppress(AgenticError):
                await self._delete_sandboxes(f"{CLAIM_NAME_LABEL}={claim}")

    async def close(self) -> None:
        """See `Source.close`."""
        for task in list(self._looking):
            task.cancel()
        await self._pools.close()
        for owner in {owner for owner, _ in self._watchers}:
            await self._delete_sandboxes(selector(owner=owner))
        for watcher in self._watchers.values():
            await watcher.close()
        self._watchers.clear()


def has_image(pod: JsonObject, image: str, before: str) -> bool:
    """Whether a pod that was made with one image was given this one, and runs it: an update in place shows in the spec
    first. Its node may call the image by another name of the same content, but not by that of the one before."""
    spec = _container(pod["spec"]["containers"])
    status = _container(pod["status"].get("containerStatuses", []))
    if not is_mirror(str(spec.get("image", "")), image):
        return False
    running = str(status.get("image", ""))
    is_as_before = is_mirror(running, before) and not is_mirror(image, before)
    return not running or is_mirror(running, image) or not is_as_before


def is_mirror(found: str, asked: str) -> bool:
    """Whether a reference is this one, perhaps by way of a mirror, which puts its own address before or in place of the
    registry's."""
    (_, name, version), (registry, asked_name, asked_version) = split_reference(found), split_reference(asked)
    is_name = name == asked_name or name.endswith((f"/{asked_name}", f"/{registry}/{asked_name}"))
    return is_name and version == asked_version


def split_reference(reference: str) -> tuple[str, str, str]:
    """Registry, repository and version of an image, as container runtimes complete them: `python` is
    `docker.io`, `library/python`, `latest`."""
    name, _, digest = reference.partition("@")
    registry, slash, rest = name.partition("/")
    if not slash or not re.search(r"[.:]|^localhost$", registry):
        registry, rest = "docker.io", name
    rest, _, tag = rest.partition(":")
    registry = "docker.io" if registry == "index.docker.io" else registry
    if registry == "docker.io" and "/" not in rest:
        rest = f"library/{rest}"
    return registry, rest, digest or tag or "latest"


def _container(containers: list[JsonObject]) -> JsonObject:
    return next((one for one in containers if one["name"] == CONTAINER), {})
