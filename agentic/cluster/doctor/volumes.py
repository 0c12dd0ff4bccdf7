"""Checks of the claims: can all pods of a run use them, are they bound, and do they hold what a run keeps."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal

from agentic.cluster.apply import find
from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.examining import if_allowed
from agentic.cluster.doctor.facts import Facts
from agentic.cluster.objects.claims import claims_of
from agentic.cluster.quantities import as_gib, quantity
from agentic.cluster.resources import CLAIMS, EVENTS, NODES, STORAGE_CLASSES, VOLUMES, JsonObject, name_of
from agentic.cluster.settings import ClusterSettings
from agentic.cluster.storage import StorageFacts, storage_problems
from agentic.cluster.troubles import Evidence, Trouble, find_troubles, make_trouble

NAMES = (
    ("disk-category", re.compile(r"NotSupportDiskCategory")),
    ("zone-conflict", re.compile(r"ResourcesNotInSameZone|in any zone of the cluster")),
    ("claim-lost", re.compile(r"has lost its volume")),
    ("storage-class-missing", re.compile(r"no default StorageClass|there is none of that name")),
    ("claim-not-shared", re.compile(r"")),
)
"""What each line of `storage_problems` is called."""
REMEDY = re.compile(r": (?:[^:()]|\([^()]*\)|:(?! ))*$")
"""The last part of such a line; what stands in brackets is no part of its own."""

WAITS = "WaitForFirstConsumer"
"""Mode of a class whose claims are bound when a pod uses them, and the reason of the event that says so."""


async def check_volumes(client: KubeClient, facts: Facts) -> list[Trouble]:
    namespace = facts.cluster.namespace
    found = await asyncio.gather(
        *(find(client, CLAIMS, claim.claim, namespace) for claim in claims_of(facts.cluster).values())
    )
    claims = {name_of(claim): claim for claim in found if claim is not None}
    classes, nodes, volumes = await asyncio.gather(
        if_allowed(client.list(STORAGE_CLASSES)), if_allowed(client.list(NODES)), if_allowed(client.list(VOLUMES))
    )
    events = await if_allowed(client.list(EVENTS, namespace=namespace, fields="involvedObject.kind=" + CLAIMS.kind))
    known = StorageFacts(
        claims=claims,
        classes=None if classes is None else classes.items,
        nodes=None if nodes is None else nodes.items,
        volumes=None if volumes is None else volumes.items,
    )
    said = [event for event in (events.items if events else ()) if event["involvedObject"]["name"] in claims]
    waiting = {event["involvedObject"]["name"] for event in said if event.get("reason") == WAITS}
    unbound = [
        {"kind": CLAIMS.kind, **claim}
        for name, claim in claims.items()
        if name not in waiting and not _waits_for_a_pod(claim, known)
    ]
    return [
        *(name_problem(line) for line in storage_problems(facts.cluster, known)),
        *find_troubles(Evidence(objects=unbound, events=said)),
        *judge_sizes(facts.cluster, claims, facts.volume_bytes),
    ]


def name_problem(line: str) -> Trouble:
    """A line of `storage_problems`, whose last part says what to do, as a trouble of the catalogue. Pure."""
    name = next(name for name, words in NAMES if words.search(line))
    found = REMEDY.search(line)
    if found is None:
        return make_trouble(name, "storage", line)
    return make_trouble(name, "storage", line[: found.start()], remedy=line[found.start() + 2 :])


def _waits_for_a_pod(claim: JsonObject, known: StorageFacts) -> bool:
    """Bound only when a pod uses it, so that being pending is no trouble yet."""
    binding = {name_of(one): one.get("volumeBindingMode") for one in known.classes or ()}
    return binding.get(claim["spec"].get("storageClassName")) == WAITS


def judge_sizes(
    cluster: ClusterSettings, claims: Mapping[str, JsonObject], needed_bytes: Mapping[str, float]
) -> Iterator[Trouble]:
    """Claims that exist by their capacity, others by the size that would be asked for. Pure."""
    for section, asked in claims_of(cluster).items():
        needed, claim = needed_bytes.get(section, 0.0), claims.get(asked.claim)
        capacity = ((claim or {}).get("status") or {}).get("capacity", {}).get("storage") or asked.size
        if needed > quantity(capacity):
            message = f"{capacity} for about {as_gib(Decimal(needed))}"
            remedy = f"make it larger (cluster.{section}.size, if it has to be made), or keep less in it"
            yield make_trouble("claim-too-small", f"claim {asked.claim}", message, remedy=remedy)
