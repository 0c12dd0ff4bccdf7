"""Removing what dead owners left of a run.

An owner is dead when its lease is gone or expired, or its process is. Sandboxes are listed before leases, so that an
owner who begins meanwhile is either seen with its lease or not at all: sweeping beside others is safe, and twice too.
"""

import uuid
from collections.abc import Sequence

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import ForbiddenError, NotFoundError
from agentic.cluster.resources import DAEMON_SETS, JOBS, NETWORK_POLICIES, JsonObject, Resource, name_of, uid_of
from agentic.sandbox.kube.manifests import LEASE_LABEL, lease_job
from agentic.sandbox.kube.names import OWNER_LABEL, label_value, object_name, selector
from agentic.sandbox.kube.owner import is_lease_dead, server_time
from agentic.sandbox.settings import KubeSandbox

ALWAYS = (NETWORK_POLICIES, DAEMON_SETS)


async def sweep_run(
    api: KubeApi, settings: KubeSandbox, kinds: Sequence[Resource], run_id: str, *, is_over: bool = False
) -> int:
    """Remove the objects of dead owners, by the API server's clock; how many of the first
    kind there were. When the run is over, all of its owners are dead, however lately they renewed."""
    labels = selector(run=label_value(run_id))
    found = [(kind, await _list(api, kind, labels)) for kind in (*kinds, *ALWAYS)]
    leases = (await api.list(JOBS, labels=f"{labels},{LEASE_LABEL}=true")).items
    now = await _server_now(api, settings, run_id) if leases else 0.0
    living = {
        name_of(lease) for lease in leases if not is_over and not is_lease_dead(lease, settings.renew_seconds, now)
    }
    swept = 0
    for kind, bodies in found:
        for body in bodies:
            owner = body["metadata"].get("labels", {}).get(OWNER_LABEL)
            if owner is None or owner in living:
                continue
            was_there = await api.delete(kind, name_of(body), uid=uid_of(body))
            swept += was_there and kind is kinds[0]
    for lease in leases:
        if name_of(lease) not in living:
            await api.delete(JOBS, name_of(lease), uid=uid_of(lease))
    return swept


async def _server_now(api: KubeApi, settings: KubeSandbox, run_id: str) -> float:
    """The clock that heartbeats are told by; two machines' own may differ by more than an owner may be silent."""
    name = object_name(run_id, uuid.uuid4().hex)
    return server_time(await api.create(JOBS, lease_job(settings, run_id, name, "", 0.0), dry_run=True))


async def _list(api: KubeApi, kind: Resource, labels: str) -> Sequence[JsonObject]:
    """Kinds that the cluster does not have, or that are none of our business, hold nothing of ours."""
    try:
        return (await api.list(kind, labels=labels)).items
    except NotFoundError:
        return ()
    except ForbiddenError:
        if kind in ALWAYS:
            return ()
        raise
