"""One run as this process holds it: its lease, its network policy, and the live copy of its pods.

The lease is a Job without pods. Its deadline is pushed on while we live; when we were killed, the cluster's own
controllers fail it, remove it and remove what belongs to it, and no code of ours has to run for that. `close` removes
it at once. A lease that vanished under us is made anew, and what had belonged to it is lost.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
import uuid
from pathlib import Path

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import NotFoundError
from agentic.cluster.resources import JOBS, NETWORK_POLICIES, PODS, JsonObject
from agentic.cluster.watching import Watcher
from agentic.errors import AgenticError
from agentic.sandbox.kube.leases import deadline_seconds, is_owner_dead, parse_time
from agentic.sandbox.kube.manifests import HEARTBEAT, HOLDER, lease_job, network_policy
from agentic.sandbox.kube.names import object_name, selector
from agentic.sandbox.local.state import ProcessIdentity, identify, own_identity
from agentic.sandbox.settings import KubeSandbox

log = logging.getLogger(__name__)


class Owner:
    """This process, for one run."""

    def __init__(self, api: KubeApi, settings: KubeSandbox, run_id: str) -> None:
        self.run_id = run_id
        self.name = object_name(run_id, uuid.uuid4().hex)
        self.pods = Watcher(api, PODS, labels=selector(owner=self.name))
        self._api, self._settings = api, settings
        self._lease: JsonObject = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def lease(self) -> JsonObject:
        return self._lease

    async def start(self) -> None:
        """Make lease and policy before any sandbox, and begin to renew and to watch."""
        self._lease = await self._make_lease()
        await self._api.apply(NETWORK_POLICIES, self._policy())
        await self.pods.start()
        self._task = asyncio.create_task(self._renew_for_ever(), name=f"renew {self.name}")

    async def _make_lease(self) -> JsonObject:
        job = lease_job(self._settings, self.run_id, self.name, describe_holder(), time.time())
        return await self._api.create(JOBS, job)

    def _policy(self) -> JsonObject:
        return network_policy(self._settings, self.run_id, self.name, self._lease)

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.renew_seconds)
            try:
                await self.renew()
            except AgenticError as error:
                log.warning("the lease of run %s was not renewed, which is tried again: %s", self.run_id, error)

    async def renew(self) -> None:
        """Push the lease's end on."""
        now = time.time()
        started = parse_time(self._lease.get("status", {}).get("startTime"))
        started = started or parse_time(self._lease["metadata"].get("creationTimestamp")) or now
        patch = {
            "metadata": {"annotations": {HEARTBEAT: f"{now:.3f}"}},
            "spec": {"activeDeadlineSeconds": deadline_seconds(started, now, self._settings.lease_seconds)},
        }
        try:
            self._lease = await self._api.patch(JOBS, self.name, patch)
        except NotFoundError:
            log.warning("the lease of run %s is gone, and its sandboxes with it: it is made anew", self.run_id)
            self._lease = await self._make_lease()
            await self._api.apply(NETWORK_POLICIES, self._policy())

    async def close(self) -> None:
        """End the lease, and with it whatever still belongs to it."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.pods.close()
        await self._api.delete(NETWORK_POLICIES, self.name)
        await self._api.delete(JOBS, self.name)


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


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace() -> str:
    """Of process ids, in which a pid means something."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - the link leads nowhere
