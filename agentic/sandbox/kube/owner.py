"""One run as this process holds it: its lease, its network policy, and the live copy of its pods.

The lease is a Job without pods. Its deadline is pushed on while we live; when we were killed, the cluster's own
controllers fail it, remove it and remove what belongs to it, and no code of ours has to run for that. `close` removes
it at once. A lease that vanished under us is made anew, and what had belonged to it is lost. Invariant: no sandbox is
asked for while the lease that it would belong to has no network policy.
"""

import asyncio
import logging
import os
import socket
import time
import uuid
from pathlib import Path

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import NotFoundError, WaitTimeoutError
from agentic.cluster.resources import JOBS, NETWORK_POLICIES, PODS, JsonObject, uid_of
from agentic.cluster.watching import Watcher
from agentic.errors import AgenticError
from agentic.sandbox.kube.ending import each, to_its_end
from agentic.sandbox.kube.leases import deadline_seconds, is_owner_dead, parse_time
from agentic.sandbox.kube.manifests import HEARTBEAT, HOLDER, lease_job, network_policy
from agentic.sandbox.kube.names import object_name, selector
from agentic.sandbox.local.state import ProcessIdentity, identify, own_identity
from agentic.sandbox.settings import KubeSandbox

log = logging.getLogger(__name__)


POLICY_SECONDS = 15.0
"""How long the network policy waits for the pods that it closes in; the lease takes what is left."""


class Owner:
    """This process, for one run."""

    def __init__(self, api: KubeApi, settings: KubeSandbox, run_id: str) -> None:
        self.run_id = run_id
        self.name = object_name(run_id, uuid.uuid4().hex)
        self.pods = Watcher(api, PODS, labels=selector(owner=self.name))
        self._api, self._settings = api, settings
        self._lease: JsonObject = {}
        self._made_at = time.monotonic()
        self._clock_lag = 0.0
        self._closed_in = ""
        """Uid of the lease that the network policy belongs to."""
        self._task: asyncio.Task[None] | None = None

    @property
    def lease(self) -> JsonObject:
        return self._lease

    async def start(self) -> None:
        """Make lease and policy before any sandbox, and begin to renew and to watch."""
        await self._make()
        try:
            async with asyncio.timeout(self._settings.start_timeout_seconds):
                await self.pods.start()
        except TimeoutError:
            raise WaitTimeoutError(f"the pods of run {self.run_id} cannot be watched: {self.pods.trouble}") from None
        self._task = asyncio.create_task(self._renew_for_ever(), name=f"renew {self.name}")

    async def _make(self) -> None:
        await to_its_end(self._make_lease())
        await self.close_in()
        if abs(self._clock_lag) > self._settings.renew_seconds:
            await self.renew()

    async def _make_lease(self) -> None:
        """Its time is counted by our own clock from before it began, and told by the API server's."""
        made_at = time.monotonic()
        job = lease_job(self._settings, self.run_id, self.name, describe_holder(), time.time())
        self._lease = await self._api.create(JOBS, job)
        self._made_at = made_at
        self._clock_lag = server_time(self._lease) - time.time()

    async def close_in(self) -> None:
        """Give the lease's sandboxes their network policy, unless they have it."""
        lease = self._lease
        if self._closed_in != uid_of(lease):
            policy = network_policy(self._settings, self.run_id, self.name, lease)
            await to_its_end(self._api.apply(NETWORK_POLICIES, policy))
            self._closed_in = uid_of(lease)

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.renew_seconds)
            try:
                await self.renew()
            except AgenticError as error:
                log.warning("the lease of run %s was not renewed, which is tried again: %s", self.run_id, error)

    async def renew(self) -> None:
        """Push the lease's end on, and finish what making it anew has left undone."""
        lasts = deadline_seconds(self._made_at, time.monotonic(), self._settings.lease_seconds)
        patch = {
            "metadata": {"annotations": {HEARTBEAT: f"{time.time() + self._clock_lag:.3f}"}},
            "spec": {"activeDeadlineSeconds": lasts},
        }
        try:
            lease = await self._api.patch(JOBS, self.name, patch)
        except NotFoundError:
            log.warning("the lease of run %s is gone, and its sandboxes with it: it is made anew", self.run_id)
            await self._make()
            return
        if uid_of(lease) != uid_of(self._lease):
            await self._take_over(lease)
        else:
            self._lease = lease
        await self.close_in()

    async def _take_over(self, lease: JsonObject) -> None:
        """A lease that we made without learning of it, since the answer got lost: its time is its own."""
        age = time.time() + self._clock_lag - server_time(lease)
        self._lease, self._made_at = lease, time.monotonic() - max(age, 0.0)
        await self.renew()

    async def close(self) -> None:
        """End the lease, and with it whatever still belongs to it. May be repeated."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await each([(f"run {self.run_id} ends before its pods", self._until_empty())])
        left = f"something of run {self.run_id} is left to its lease"
        await each([("a watch", self.pods.close()), (left, self._api.delete(NETWORK_POLICIES, self.name))])
        await each([(left, self._api.delete(JOBS, self.name))])

    async def _until_empty(self) -> None:
        """A pod that was deleted lives on for a moment, in which its network has to stay closed."""
        if self._task is not None:
            await self.pods.wait_until(lambda pods: None if pods else True, timeout_seconds=POLICY_SECONDS)


def describe_holder() -> str:
    """This process, so that others on this machine can tell whether it lives."""
    identity = own_identity()
    return f"{socket.gethostname()} {_boot()} {_namespace()} {identity.pid}:{identity.started}"


def is_lease_dead(job: JsonObject, renew_seconds: float, now: float) -> bool:
    """Whether the owner of a lease is dead: its process is gone from this machine, or it has stopped renewing."""
    if job["metadata"].get("deletionTimestamp"):
        return True
    annotations = job["metadata"].get("annotations", {})
    *place, process = str(annotations.get(HOLDER, "")).split(" ")
    if place == [socket.gethostname(), _boot(), _namespace()]:
        pid, _, started = process.partition(":")
        return identify(int(pid)) != ProcessIdentity(int(pid), int(started))
    try:
        renewed_at = float(annotations.get(HEARTBEAT, ""))
    except ValueError:
        renewed_at = None
    return is_owner_dead(renewed_at, renew_seconds, now)


def server_time(job: JsonObject) -> float:
    """When a lease was made, by the API server's clock; ours where it does not say."""
    made = parse_time(job["metadata"].get("creationTimestamp"))
    return time.time() if made is None else made


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace() -> str:
    """Of process ids, in which a pid means something."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - the link leads nowhere
