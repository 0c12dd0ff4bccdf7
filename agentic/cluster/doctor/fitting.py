"""Which pods fit on which nodes, and the largest that would. Pure.

A pod has to fit on one node. What no node offers (allocatable, which is less than the machine has) stays a trouble
until somebody acts; what nodes offer but other pods use may pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor

from agentic.cluster.doctor.facts import PodNeed
from agentic.cluster.quantities import GIB, as_cpus, as_gib, quantity
from agentic.cluster.resources import JsonObject, name_of
from agentic.cluster.troubles import Trouble, make_trouble

CPU, MEMORY, PODS = "cpu", "memory", "pods"
Amounts = Mapping[str, Decimal]
NO_ROOM = {CPU: "no-room-for-cpu", MEMORY: "no-room-for-memory", PODS: "no-room-for-pods"}
"""What is scarce to the trouble's name; all else is a GPU."""


@dataclass(frozen=True, slots=True)
class Node:
    """What one node offers, and what of it is free."""

    name: str
    allocatable: Amounts
    free: Amounts | None
    """None: the account may not see the pods of others."""
    labels: Mapping[str, str]
    taints: Sequence[JsonObject]
    is_open: bool
    """Ready, and takes pods."""


def read_nodes(nodes: Sequence[JsonObject], pods: Sequence[JsonObject] | None) -> list[Node]:
    """`pods` are those of all namespaces, None when they cannot be seen."""
    used: dict[str, dict[str, Decimal]] = {}
    for pod in pods or ():
        node = pod["spec"].get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            sums = used.setdefault(str(node), {})
            for name, amount in {**requests_of(pod["spec"]), PODS: Decimal(1)}.items():
                sums[name] = sums.get(name, Decimal(0)) + amount
    return [_read(node, None if pods is None else used.get(name_of(node), {})) for node in nodes]


def _read(node: JsonObject, used: Amounts | None) -> Node:
    status, spec = node.get("status") or {}, node.get("spec") or {}
    allocatable = {name: quantity(amount) for name, amount in (status.get("allocatable") or {}).items()}
    free = None
    if used is not None:
        free = {name: amount - used.get(name, Decimal(0)) for name, amount in allocatable.items()}
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") != "PreferNoSchedule"]
    return Node(
        name=name_of(node),
        allocatable=allocatable,
        free=free,
        labels=node["metadata"].get("labels") or {},
        taints=taints,
        is_open=ready and not spec.get("unschedulable"),
    )


def requests_of(spec: JsonObject) -> dict[str, Decimal]:
    """What the scheduler counts for a pod: its containers together, or the largest of what runs before them."""
    total: dict[str, Decimal] = {}
    for container in spec.get("containers") or ():
        _add(total, container)
    first: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            _add(total, container)
        else:
            for name, amount in _requests(container).items():
                first[name] = max(first.get(name, Decimal(0)), amount)
    for name, amount in first.items():
        total[name] = max(total.get(name, Decimal(0)), amount)
    for name, amount in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, Decimal(0)) + quantity(amount)
    return total


def _add(total: dict[str, Decimal], container: JsonObject) -> None:
    for name, amount in _requests(container).items():
        total[name] = total.get(name, Decimal(0)) + amount


def _requests(container: JsonObject) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    named = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in named.items()}


def judge_room(needs: Sequence[PodNeed], nodes: Sequence[Node], gpu_resource: str) -> Iterator[Trouble]:
    """Pod by pod; each need by itself, since a run's steps follow one another."""
    for need in needs:
        yield from _judge(need, nodes, gpu_resource)


def _judge(need: PodNeed, nodes: Sequence[Node], gpu_resource: str) -> Iterator[Trouble]:
    chosen = [node for node in nodes if need.selector.items() <= node.labels.items()]
    tolerated = [node for node in chosen if _is_tolerated(node, need)]
    usable = [node for node in tolerated if node.is_open]
    if not chosen:
        labels = ", ".join(f"{key}={value}" for key, value in need.selector.items()) or "any"
        yield make_trouble("nodes-not-selected", need.name, f"no node of {len(nodes)} has the labels {labels}")
    elif not tolerated:
        taints = ", ".join(sorted({_taint(taint) for node in chosen for taint in node.taints}))
        yield make_trouble("nodes-tainted", need.name, f"every node it may run on has taints: {taints}")
    elif not usable:
        names = ", ".join(node.name for node in tolerated[:4])
        yield make_trouble("nodes-closed", need.name, f"no node it may run on is ready and takes pods: {names}")
    else:
        yield from _judge_sizes(need, usable, gpu_resource)


def _judge_sizes(need: PodNeed, nodes: Sequence[Node], gpu_resource: str) -> Iterator[Trouble]:
    wanted = _wanted(need, gpu_resource)
    if not any(_fits(wanted, node.allocatable) for node in nodes):
        yield _too_large(need, wanted, nodes, gpu_resource)
        return
    known = [node for node in nodes if node.free is not None]
    taken = [_counted(wanted, node) for node in known]
    places = sum(_times(amounts, node.free or {}) for amounts, node in zip(taken, known, strict=True))
    if known and places < need.count:
        yield _no_room(need, wanted, known, places, gpu_resource)


def _wanted(need: PodNeed, gpu_resource: str) -> dict[str, Decimal]:
    gpus = {gpu_resource: Decimal(need.gpus)} if need.gpus else {}
    return {CPU: need.cpus, MEMORY: need.memory_bytes, **gpus}


def _counted(wanted: Amounts, node: Node) -> Amounts:
    """With the pod itself, of which a node takes only so many."""
    return {**wanted, PODS: Decimal(1)} if PODS in node.allocatable else wanted


def _fits(wanted: Amounts, offered: Amounts) -> bool:
    return all(offered.get(name, Decimal(0)) >= amount for name, amount in wanted.items())


def _times(wanted: Amounts, free: Amounts) -> int:
    """How many such pods a node still takes."""
    return max(0, min(floor(free.get(name, Decimal(0)) / amount) for name, amount in wanted.items() if amount))


def _too_large(need: PodNeed, wanted: Amounts, nodes: Sequence[Node], gpu_resource: str) -> Trouble:
    best = max(nodes, key=lambda node: _closeness(wanted, node.allocatable))
    message = f"it asks for {_words(wanted, gpu_resource)}; {best.name} offers {_words(best.allocatable, gpu_resource)}"
    return make_trouble("larger-than-any-node", need.name, message, remedy=_largest(need, best, gpu_resource))


def _closeness(wanted: Amounts, offered: Amounts) -> tuple[int, Decimal]:
    """Fewest things that lack, then the most of what lacks."""
    shares = [offered.get(name, Decimal(0)) / amount for name, amount in wanted.items() if amount]
    return sum(share >= 1 for share in shares), min(shares)


def _largest(need: PodNeed, node: Node, gpu_resource: str) -> str:
    """What would fit, in the settings' words."""
    offered, parts = node.allocatable, []
    if need.cpus > offered.get(CPU, 0):
        parts.append(f"{need.setting} of {floor(offered.get(CPU, Decimal(0)))} CPUs")
    if need.memory_bytes > offered.get(MEMORY, 0):
        parts.append(f"{need.setting} of {floor(offered.get(MEMORY, Decimal(0)) / GIB)}Gi memory")
    if need.gpus > offered.get(gpu_resource, 0):
        parts.append(f"{need.setting} of {offered.get(gpu_resource, Decimal(0))} GPUs")
    return f"at most {' and '.join(parts)} would fit: lower it, or add larger nodes"


def _no_room(need: PodNeed, wanted: Amounts, nodes: Sequence[Node], places: int, gpu_resource: str) -> Trouble:
    best = max(nodes, key=lambda node: _closeness(wanted, node.free or {}))
    count = f"{need.count} of " if need.count > 1 else ""
    message = f"{count}{_words(wanted, gpu_resource)} are asked for and there is room for {places}"
    message += f"; {best.name} has {_words(best.free or {}, gpu_resource)} free"
    return make_trouble(NO_ROOM.get(_scarcest(wanted, nodes), "no-room-for-gpu"), need.name, message)


def _scarcest(wanted: Amounts, nodes: Sequence[Node]) -> str:
    """What lets the fewest pods in, where each node counts by what it has too little of."""
    places: dict[str, int] = {}
    for node in nodes:
        counted = _counted(wanted, node)
        for name, amount in counted.items():
            places[name] = places.get(name, 0) + _times({name: amount}, node.free or {})
    return min(reversed(places), key=lambda name: places[name])


def _words(amounts: Amounts, gpu_resource: str) -> str:
    gpus = amounts.get(gpu_resource, Decimal(0))
    words = f"{as_cpus(amounts.get(CPU, Decimal(0)))} CPUs, {as_gib(amounts.get(MEMORY, Decimal(0)))}"
    return f"{words}, {gpus} GPUs" if gpu_resource in amounts else words


def _is_tolerated(node: Node, need: PodNeed) -> bool:
    return all(any(_tolerates(one, taint) for one in need.tolerations) for taint in node.taints if _is_lasting(taint))


def _is_lasting(taint: JsonObject) -> bool:
    """Kubernetes' own taints come and go with a node's state, which is judged by itself."""
    return not str(taint.get("key", "")).startswith("node.kubernetes.io/")


def _tolerates(toleration: JsonObject, taint: JsonObject) -> bool:
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    if effect and effect != taint.get("effect"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return key in ("", taint.get("key"))
    return bool(key == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or ""))


def _taint(taint: JsonObject) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"
