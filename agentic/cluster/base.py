"""What the runs of a namespace share, made before a Workflow is: the claims of the workspace and the pods' account.

Nothing is made when the storage would not do. What is there is adopted: claims always, and an account or Role that
somebody else made when it gives the rights that are needed. Waiting for claims ends early, with the trouble's name, and
a claim that waits for its first pod (WaitForFirstConsumer) is as good as bound until a pod uses it. Safe to repeat, and
beside another run.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence

from agentic.cluster.access import lacking
from agentic.cluster.api import KubeApi
from agentic.cluster.apply import apply, find
from agentic.cluster.errors import (
    AdmissionRefusedError,
    ForbiddenError,
    ForeignObjectError,
    StorageMisfitError,
    WaitTimeoutError,
)
from agentic.cluster.objects.claims import claims
from agentic.cluster.objects.rights import MoreRights, rights
from agentic.cluster.resources import (
    CLAIMS,
    EVENTS,
    NODES,
    ROLE_BINDINGS,
    ROLES,
    STORAGE_CLASSES,
    VOLUMES,
    JsonObject,
    Resource,
    name_of,
    resource_of,
    uid_of,
)
from agentic.cluster.settings import ClusterSettings
from agentic.cluster.storage import StorageFacts, storage_problems
from agentic.cluster.troubles import Evidence, find_troubles
from agentic.cluster.watching import Watcher
from agentic.errors import AgenticError

LOOK_SECONDS = 1.0
"""Between two looks at the events of claims that are not bound."""
LASTING_SECONDS = 15.0
"""How long what does not pass without a change may stay: a driver that is throttled says the same for a moment."""
WAITS = "WaitForFirstConsumer"
"""Reason of an event of such a claim, and binding mode of its class."""
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim whose first pod has a node."""


async def ensure_base(client: KubeApi, settings: ClusterSettings, more: Sequence[MoreRights] = ()) -> list[str]:
    """Lines that say what was made and what was found.

    Raises:
        StorageMisfitError: claims that the run's pods could not use; nothing was made.
        ForbiddenError: there is no account, and ours may not make it.
        ForeignObjectError: a Role of that name that is not ours to change lacks rights.
        WaitTimeoutError: a claim got no volume in time; says why.
    """
    facts = await storage_facts(client, settings)
    problems = storage_problems(settings, facts)
    if problems:
        raise StorageMisfitError("; ".join(problems))
    done = [await _ensure_claim(client, claim, facts) for claim in claims(settings)]
    done += await _ensure_rights(client, settings, more)
    names = [name_of(claim) for claim in claims(settings)]
    late = [name_of(one) for one in facts.classes or () if one.get("volumeBindingMode") == WAITS]
    return done + await wait_for_claims(
        client, names, settings.bound_timeout_seconds, settings.namespace, late_classes=late
    )


async def storage_facts(client: KubeApi, settings: ClusterSettings) -> StorageFacts:
    """What the account may know."""
    namespace = settings.namespace
    found = [(name_of(claim), await find(client, CLAIMS, name_of(claim), namespace)) for claim in claims(settings)]
    classes, nodes, volumes = await asyncio.gather(
        *(_known(client, kind) for kind in (STORAGE_CLASSES, NODES, VOLUMES))
    )
    there = {name: claim for name, claim in found if claim is not None}
    return StorageFacts(claims=there, classes=classes, nodes=nodes, volumes=volumes)


async def _known(client: KubeApi, kind: Resource) -> Sequence[JsonObject] | None:
    try:
        return (await client.list(kind)).items
    except ForbiddenError:
        return None


async def _ensure_claim(client: KubeApi, claim: JsonObject, facts: StorageFacts) -> str:
    name = name_of(claim)
    made = await apply(client, claim)
    size = made["spec"]["resources"]["requests"]["storage"]
    modes = ", ".join(made["spec"]["accessModes"])
    return f"claim {name} is {'there' if name in facts.claims else 'made'} ({size}, {modes})"


async def _ensure_rights(client: KubeApi, settings: ClusterSettings, more: Sequence[MoreRights]) -> list[str]:
    """The account is applied; who may not do that finds one that an admin made."""
    done: list[str] = []
    for manifest in rights(settings, more):
        what = f"{manifest['kind']} {name_of(manifest)}"
        try:
            await apply(client, manifest)
        except ForeignObjectError:
            await _require_enough(client, manifest)
            done.append(f"{what} is there, made by somebody else")
        except (ForbiddenError, AdmissionRefusedError) as error:
            # The second is how the API server words that nobody gives rights that he does not have.
            is_seen = await _require_there(client, manifest, error)
            done.append(
                f"{what} is {'there, and' if is_seen else 'not ours to look at, hence taken to be there, and'} "
                "not ours to change"
            )
        else:
            done.append(f"{what} is applied")
    return done


async def _require_enough(client: KubeApi, manifest: JsonObject) -> None:
    """What is not ours to change has to give what the pipeline needs: a Role its rights, a RoleBinding these to the
    pods' account."""
    kind = resource_of(manifest)
    if kind not in (ROLES, ROLE_BINDINGS):
        return
    found = await client.get(kind, name_of(manifest), namespace=manifest["metadata"]["namespace"])
    missing = lacking(manifest["rules"], found.get("rules") or ()) if kind == ROLES else _unbound(manifest, found)
    if missing:
        raise ForeignObjectError(
            f"{kind.kind} {name_of(manifest)} is not ours to change and lacks {', '.join(missing)}: have an admin add "
            "them, or set cluster.service_account to a name that is free"
        )


def _unbound(wanted: JsonObject, found: JsonObject) -> list[str]:
    """What a RoleBinding does not bind that it should."""
    subjects = [{key: one.get(key) for key in ("kind", "name", "namespace")} for one in found.get("subjects") or ()]
    missing = [f"{one['kind']} {one['name']} as a subject" for one in wanted["subjects"] if one not in subjects]
    role, given = wanted["roleRef"], found.get("roleRef") or {}
    is_same = all(given.get(key) == role[key] for key in ("kind", "name"))
    return missing if is_same else [*missing, f"{role['kind']} {role['name']} (it gives {given.get('name')})"]


async def _require_there(client: KubeApi, manifest: JsonObject, error: AgenticError) -> bool:
    """Whether it was seen."""
    resource, name = resource_of(manifest), name_of(manifest)
    try:
        found = await find(client, resource, name, manifest["metadata"]["namespace"])
    except ForbiddenError:
        return False
    if found is None:
        raise ForbiddenError(
            f"{error}; there is no {resource.kind} {name}: have an admin apply what python3 workflows/submit.py render "
            "--objects DIR writes"
        ) from error
    await _require_enough(client, manifest)
    return True


async def wait_for_claims(
    client: KubeApi,
    names: Sequence[str],
    timeout_seconds: float,
    namespace: str | None = None,
    *,
    late_classes: Collection[str] = (),
) -> list[str]:
    """Returns when each is bound, or waits for its first pod only, as those of `late_classes` do."""
    clock = asyncio.get_running_loop().time
    began, troubled_since = clock(), None
    async with Watcher(client, CLAIMS, namespace=namespace) as watcher:
        while True:
            unbound = [body for body in _present(watcher, names) if not _is_bound(body)]
            events = [event for body in unbound for event in await _events_of(client, body)]
            pending = [body for body in unbound if not _waits_for_a_pod(body, events, late_classes)]
            if not pending:
                waiting = {name_of(body) for body in unbound}
                return [_state(name, name in waiting) for name in names]
            found = find_troubles(Evidence(objects=[_with_kind(claim) for claim in pending], events=events))
            stays = [trouble.line for trouble in found if not trouble.transient]
            troubled_since = (troubled_since or clock()) if stays else None
            if troubled_since is not None and clock() - troubled_since >= LASTING_SECONDS:
                raise StorageMisfitError("; ".join(stays))
            if clock() - began > timeout_seconds:
                raise WaitTimeoutError(_too_late(pending, [trouble.line for trouble in found], timeout_seconds))
            await _until_bound(watcher, [name_of(body) for body in pending])


def _present(watcher: Watcher, names: Sequence[str]) -> list[JsonObject]:
    missing = [name for name in names if name not in watcher.objects]
    if missing:
        raise StorageMisfitError(f"there is no claim {', '.join(missing)}: make it (submit does), or correct its name")
    return [watcher.objects[name] for name in names]


async def _until_bound(watcher: Watcher, names: Sequence[str]) -> None:
    """Until one of them is, or it is time to look at events again, which nobody watches."""

    def has_bound(objects: Mapping[str, JsonObject]) -> bool | None:
        return any(name not in objects or _is_bound(objects[name]) for name in names) or None

    with contextlib.suppress(WaitTimeoutError):
        await watcher.wait_until(has_bound, timeout_seconds=LOOK_SECONDS)


def _is_bound(claim: JsonObject) -> bool:
    return bool((claim.get("status") or {}).get("phase") == "Bound")


async def _events_of(client: KubeApi, claim: JsonObject) -> Sequence[JsonObject]:
    chosen = f"involvedObject.kind={CLAIMS.kind},involvedObject.name={name_of(claim)}"
    try:
        found = await client.list(EVENTS, namespace=claim["metadata"]["namespace"], fields=chosen)
    except ForbiddenError:
        return ()
    return [event for event in found.items if event["involvedObject"].get("uid") in (None, uid_of(claim))]


def _waits_for_a_pod(claim: JsonObject, events: Sequence[JsonObject], late_classes: Collection[str]) -> bool:
    """Until the scheduler has found a node for the first pod that uses it; from then on it has to be bound. By its
    class, or by an event where classes may not be read."""
    if SELECTED_NODE in (claim["metadata"].get("annotations") or {}):
        return False
    if claim["spec"].get("storageClassName") in late_classes:
        return True
    names = {event["involvedObject"].get("name") for event in events if event.get("reason") == WAITS}
    return name_of(claim) in names


def _too_late(pending: Sequence[JsonObject], lines: Sequence[str], seconds: float) -> str:
    names = ", ".join(name_of(claim) for claim in pending)
    return f"claim {names} has no volume after {seconds:.0f} s: {'; '.join(lines) or 'nothing says why'}"


def _with_kind(body: JsonObject) -> JsonObject:
    """Objects of a list come without their kind."""
    return {"kind": CLAIMS.kind, **body}


def _state(name: str, waits: bool) -> str:
    return f"claim {name} gets its volume with its first pod" if waits else f"claim {name} is bound"
