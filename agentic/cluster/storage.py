"""Which claims the run's pods can use, from settings and from what the cluster says about itself. Pure.

Two kinds of storage: shared (file or object storage, any number of nodes, any zone) and block (a disk, one node at a
time, in that node's zone and of a category that its instance type attaches). Each wrong combination is one line that
says which setting to change; what the account may not ask (`None`) is not judged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentic.cluster.objects.claims import claims_of
from agentic.cluster.resources import JsonObject, name_of
from agentic.cluster.settings import ClaimSettings, ClusterSettings, label_map

HOSTNAME, INSTANCE_TYPE = "kubernetes.io/hostname", "node.kubernetes.io/instance-type"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
DISKS = frozenset(
    [
        "diskplugin.csi.alibabacloud.com",
        "disk.csi.azure.com",
        "ebs.csi.aws.com",
        "pd.csi.storage.gke.io",
        "cinder.csi.openstack.org",
        "csi.vsphere.vmware.com",
    ]
)
"""Drivers whose volumes one node mounts at a time."""

UNUSABLE = {
    "ReadWriteOncePod": "one pod mounts at a time, where a step, Ray's head and image builds do at once",
    "ReadOnlyMany": "nothing can be written to, where downloads and runs are",
}
"""Access modes of claims that serve no run, and why."""


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What the cluster has. None: not known."""

    claims: Mapping[str, JsonObject] = field(default_factory=dict)
    """Claims that exist, by name."""
    classes: Sequence[JsonObject] | None = None
    """StorageClasses."""
    nodes: Sequence[JsonObject] | None = None
    """Nodes."""
    volumes: Sequence[JsonObject] | None = None
    """PersistentVolumes."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """One claim as it is, or as it would be made."""

    section: str
    asked: ClaimSettings
    found: JsonObject | None

    @property
    def setting(self) -> str:
        return f"cluster.{self.section}"

    @property
    def class_name(self) -> str | None:
        if self.found is not None:
            name: str | None = self.found["spec"].get("storageClassName")
            return name
        return self.asked.storage_class


def storage_problems(settings: ClusterSettings, facts: StorageFacts | None = None) -> list[str]:
    """Why the claims would not do; empty when nothing is known to be wrong."""
    known = facts or StorageFacts()
    found = list(_of_settings(settings))
    for section, asked in claims_of(settings).items():
        claim = _Claim(section, asked, known.claims.get(asked.claim))
        found += _of_claim(claim)
        found += _of_class(claim, known)
        if asked.storage == "block":
            found += _of_nodes(claim, settings, known)
    return found


def _of_settings(settings: ClusterSettings) -> Iterator[str]:
    blocks = [f"cluster.{section}" for section, claim in claims_of(settings).items() if claim.storage == "block"]
    if not blocks:
        return
    names = " and ".join(f"{name}.storage" for name in blocks)
    if settings.workers.replicas:
        yield (
            f"{names} is block, a disk that one node mounts at a time, but cluster.workers.replicas is "
            f"{settings.workers.replicas}: set it to shared, or train on one node"
        )
    if HOSTNAME not in label_map(settings.node_selector):
        yield (
            f"{names} is block, a disk that one node mounts at a time, but the run's pods may land on several: set "
            f'cluster.node_selector=["{HOSTNAME}=NODE"], or use shared storage'
        )


def _of_claim(claim: _Claim) -> Iterator[str]:
    """A claim that exists, against what the settings take it for."""
    if claim.found is None:
        return
    modes = claim.found["spec"].get("accessModes") or []
    unusable = next((why for mode, why in UNUSABLE.items() if modes and set(modes) <= {mode}), None)
    if unusable is not None:
        yield (
            f"claim {claim.asked.claim} exists with {', '.join(modes)} alone, which {unusable}: name another in "
            f"{claim.setting}.claim"
        )
    elif claim.asked.storage == "shared" and "ReadWriteMany" not in modes:
        yield (
            f"claim {claim.asked.claim} exists with {', '.join(modes)}, which several nodes cannot mount, but "
            f"{claim.setting}.storage is shared: set it to block, or name another claim"
        )
    if (claim.found.get("status") or {}).get("phase") == "Lost":
        yield f"claim {claim.asked.claim} has lost its volume, and its data with it: delete it, or name another claim"


def _of_class(claim: _Claim, facts: StorageFacts) -> Iterator[str]:
    """The class of a claim that has to be made."""
    if claim.found is not None or facts.classes is None or claim.class_name == "":
        return
    names = ", ".join(sorted(name_of(one) for one in facts.classes)) or "none"
    chosen = _class_of(claim, facts)
    if chosen is None and claim.class_name is None:
        yield f"the cluster has no default StorageClass: set {claim.setting}.storage_class (there are: {names})"
    elif chosen is None:
        yield f"{claim.setting}.storage_class is {claim.class_name} but there is none of that name (there are: {names})"
    elif claim.asked.storage == "shared" and chosen.get("provisioner") in DISKS:
        yield (
            f"{claim.setting}.storage is shared but StorageClass {name_of(chosen)} makes disks "
            f"({chosen['provisioner']}), which one node mounts at a time: set {claim.setting}.storage_class to one of "
            f"file storage (NAS, NFS, CephFS), or {claim.setting}.storage=block"
        )


def _class_of(claim: _Claim, facts: StorageFacts) -> JsonObject | None:
    """None: there is no such class, or it is not known."""
    for one in facts.classes or ():
        annotations = one["metadata"].get("annotations") or {}
        if name_of(one) == claim.class_name:
            return one
        if claim.class_name is None and annotations.get(DEFAULT_CLASS) == "true":
            return one
    return None


def _of_nodes(claim: _Claim, settings: ClusterSettings, facts: StorageFacts) -> Iterator[str]:
    """A disk against the nodes that Ray's pods may land on."""
    nodes = nodes_for_ray(settings, facts.nodes or ())
    if not nodes:
        return
    chosen = _class_of(claim, facts)
    yield from _of_zones(claim, chosen, nodes, facts)
    if chosen is not None:
        yield from _of_categories(claim, settings, chosen, nodes)


def nodes_for_ray(settings: ClusterSettings, nodes: Sequence[JsonObject]) -> list[JsonObject]:
    """Those whose labels are asked for and that have a GPU, where one is needed."""
    wanted = label_map((*settings.node_selector, *settings.ray_node_selector)).items()
    fitting = [node for node in nodes if wanted <= (node["metadata"].get("labels") or {}).items()]
    if not settings.head.gpus:
        return fitting
    return [node for node in fitting if _gpus(node, settings.gpu_resource) > 0]


def _gpus(node: JsonObject, resource: str) -> int:
    return int(((node.get("status") or {}).get("allocatable") or {}).get(resource) or 0)


def _of_zones(
    claim: _Claim, chosen: JsonObject | None, nodes: Sequence[JsonObject], facts: StorageFacts
) -> Iterator[str]:
    where, zones = _zones_of_disk(claim, chosen, facts)
    reached = set().union(*(_zones_of_node(node) for node in nodes))
    there = ", ".join(sorted(reached))
    if zones and reached and not zones & reached:
        yield (
            f"{claim.setting}: {where} in zone {', '.join(sorted(zones))} but the nodes for Ray are in {there} "
            "(ResourcesNotInSameZone): use a disk of that zone, nodes of the disk's, or shared storage"
        )
    everywhere = set().union(*(_zones_of_node(node) for node in facts.nodes or ()))
    is_made_at_once = chosen is not None and chosen.get("volumeBindingMode") != "WaitForFirstConsumer"
    if claim.found is None and is_made_at_once and chosen is not None and not zones and everywhere > reached:
        yield (
            f"{claim.setting}: StorageClass {name_of(chosen)} makes a disk at once, in any zone of the cluster, but "
            f"the nodes for Ray are in {there}: take one whose volumeBindingMode is WaitForFirstConsumer"
        )


def _zones_of_disk(claim: _Claim, chosen: JsonObject | None, facts: StorageFacts) -> tuple[str, set[str]]:
    """Of the volume that is there, else of what the class makes; empty is anywhere."""
    volume_name = claim.found["spec"].get("volumeName") if claim.found is not None else None
    for volume in facts.volumes or ():
        if name_of(volume) == volume_name:
            terms = (volume["spec"].get("nodeAffinity") or {}).get("required", {}).get("nodeSelectorTerms") or ()
            expressions = (one for term in terms for one in term.get("matchExpressions") or ())
            return f"its volume {volume_name} is", _zones(expressions)
    if chosen is None:
        return "", set()
    parameters = chosen.get("parameters") or {}
    named = [zone for key in ("zoneId", "zone", "zones") for zone in parameters.get(key, "").split(",") if zone.strip()]
    terms = chosen.get("allowedTopologies") or ()
    allowed = _zones(one for term in terms for one in term.get("matchLabelExpressions") or ())
    return f"StorageClass {name_of(chosen)} makes disks", {zone.strip() for zone in named} | allowed


def _zones(expressions: Iterator[JsonObject]) -> set[str]:
    return {zone for one in expressions if one["key"].endswith("/zone") for zone in one.get("values") or ()}


def _zones_of_node(node: JsonObject) -> set[str]:
    labels = node["metadata"].get("labels") or {}
    return {zone for key, zone in labels.items() if key.endswith("/zone")}


def _of_categories(
    claim: _Claim, settings: ClusterSettings, chosen: JsonObject, nodes: Sequence[JsonObject]
) -> Iterator[str]:
    categories = [one.strip() for one in (chosen.get("parameters") or {}).get("type", "").split(",") if one.strip()]
    types = sorted({str((node["metadata"].get("labels") or {}).get(INSTANCE_TYPE, "")) for node in nodes})
    for instance_type in types:
        for family in settings.disk_families:
            is_refused = categories and not set(categories) & set(family.categories)
            if instance_type.startswith(family.instance_type) and is_refused:
                yield (
                    f"{claim.setting}: StorageClass {name_of(chosen)} makes disks of category {', '.join(categories)} "
                    f"but nodes of type {instance_type} attach {', '.join(family.categories)} alone "
                    "(InvalidInstanceType.NotSupportDiskCategory): take a class of one of these, or shared storage"
                )
