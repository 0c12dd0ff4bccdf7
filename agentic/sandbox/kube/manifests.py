"""The objects that we make, as pure functions of settings and names.

Owned here: the isolation of a sandbox's pod. No service-account token, no service links, seccomp's default profile, no
privilege escalation, no capability, never privileged, limits on memory, CPU and disk, an end after its lease, and a
NetworkPolicy that lets it reach the proxy's port alone, or nothing, and lets nobody in but the trainer to an exec
server's port. What a task may loosen is in the settings, and listed there; the rest cannot be loosened. Nothing
here talks to a server.
"""

import posixpath
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentic.cluster.labels import PART, PART_LABEL, ROLE_LABEL, ROLE_PREFETCH, ROLE_SANDBOX, RUN_LABEL
from agentic.cluster.resources import DAEMON_SETS, JOBS, NETWORK_POLICIES, PODS, JsonObject
from agentic.cluster.settings import label_map, toleration_list
from agentic.sandbox.base import ALWAYS_WRITABLE
from agentic.sandbox.kube.names import CONTAINER, OWNER_LABEL, label_value, object_name
from agentic.sandbox.settings import KubeSandbox

IDLE = (
    "env --ignore-signal=CHLD true 2> /dev/null && exec env --ignore-signal=CHLD sleep 2147483647; "
    "trap '' CHLD; exec sleep 2147483647"
)
"""Process 1 of a sandbox: one process that never does anything, and that makes the kernel clear up orphans."""

PROGRAM, INSTALL_PATH = "/agentic/exec-server", "/install"
"""Where sandboxes and its image have the exec server, and where it is copied to from the second."""

GRACE_SECONDS = 1
"""Between the request to end and the kill. Nothing in a sandbox has anything to save."""

HEARTBEAT = "agentic-rl/renewed-at"
HOLDER = "agentic-rl/holder"
"""Annotations of a lease: when it was last renewed, in unix seconds, and by whom."""

PREFETCH_LABEL = "agentic-rl/prefetch"
"""Of pods that pull images ahead: the DaemonSet's name."""

LEASE_LABEL = "agentic-rl/lease"
"""Of leases, so that they are found."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The class of a sandbox; sandboxes of the same class can stand in for each other."""

    memory_mb: int
    cpus: float
    read_only_root: bool | None = None
    """Whether only some folders can be written; None is what the settings say."""
    writable_paths: tuple[str, ...] = ()
    """More of those than the settings name."""

    @property
    def name(self) -> str:
        name = f"{self.memory_mb}mb-{round(self.cpus * 1000)}m"
        if not self.read_only_root:
            return name
        folders = f"-{zlib.crc32(' '.join(self.writable_paths).encode()):08x}" if self.writable_paths else ""
        return f"{name}-read-only{folders}"


NEXT_TO_NOTHING = Resources(32, 0.05)


def owned_by(lease: JsonObject) -> list[JsonObject]:
    """Owner references to a lease: what has them goes when it goes."""
    return [
        {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "name": lease["metadata"]["name"],
            "uid": lease["metadata"]["uid"],
        }
    ]


def run_labels(run_id: str, owner: str, **more: str) -> dict[str, str]:
    return {PART_LABEL: PART, RUN_LABEL: label_value(run_id), OWNER_LABEL: owner, **more}


def lease_job(settings: KubeSandbox, run_id: str, name: str, holder: str, now: float) -> JsonObject:
    """The lease of one owner: a Job that runs no pod, and that the cluster's own controllers fail when nobody has
    pushed its deadline on, remove because it has ended, and whose dependents they remove with it."""
    metadata: JsonObject = {
        "labels": run_labels(run_id, name, **{LEASE_LABEL: "true"}),
        "annotations": {HEARTBEAT: f"{now:.3f}", HOLDER: holder},
    }
    if settings.owner is not None:
        owner = settings.owner
        metadata["ownerReferences"] = [
            {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        ]
    container = {**_sandbox_container(settings, settings.base_image, NEXT_TO_NOTHING), "name": "none"}
    container |= {"command": ["true"], "volumeMounts": []}
    spec: JsonObject = {
        "parallelism": 0,
        "completions": 1,
        "backoffLimit": 0,
        "activeDeadlineSeconds": settings.lease_seconds,
        "ttlSecondsAfterFinished": 0,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": _identity(settings),
                "containers": [container],
            }
        },
    }
    return {**JOBS.head(name, **metadata), "spec": spec}


def sandbox_pod_spec(
    settings: KubeSandbox,
    image: str,
    resources: Resources,
    *,
    lease_seconds: int | None = None,
    restarts: bool = False,
) -> JsonObject:
    """The pod of a sandbox, whoever makes it. `lease_seconds` ends it by itself where nothing else would. `restarts` is
    for those that take another image in place, which ends their container once."""
    writable = writable_folders(settings, resources)
    spec: JsonObject = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always" if restarts else "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "hostname": "sandbox",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": _identity(settings),
        "containers": [_sandbox_container(settings, image, resources)],
        "volumes": [
            {"name": f"writable-{number}", "emptyDir": {"sizeLimit": f"{settings.scratch_mb}Mi"}}
            for number in range(len(writable))
        ],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {ROLE_LABEL: ROLE_SANDBOX}},
            }
        ],
        **_placement(settings),
    }
    if lease_seconds is not None:
        spec["activeDeadlineSeconds"] = lease_seconds
    if settings.exec_server_image is not None:
        _add_exec_server(spec, settings, settings.exec_server_image)
    return spec


def is_read_only(settings: KubeSandbox, resources: Resources) -> bool:
    """Whether only some folders can be written: the task's word, or the run's where it says nothing."""
    return settings.read_only_root if resources.read_only_root is None else resources.read_only_root


def writable_folders(settings: KubeSandbox, resources: Resources) -> tuple[str, ...]:
    """Folders with space of their own; in a root that is read-only also those that nothing goes without."""
    more = (*ALWAYS_WRITABLE, *resources.writable_paths) if is_read_only(settings, resources) else ()
    return tuple(dict.fromkeys((*settings.writable_paths, *more)))


def _identity(settings: KubeSandbox) -> JsonObject:
    """Whom a pod's processes are, and the system calls that they may make."""
    context: JsonObject = {"seccompProfile": {"type": "RuntimeDefault"}}
    if settings.run_as_user is not None:
        context |= {"runAsNonRoot": True, "runAsUser": settings.run_as_user, "runAsGroup": settings.run_as_user}
        context["fsGroup"] = settings.run_as_user
    return context


def _add_exec_server(spec: JsonObject, settings: KubeSandbox, image: str) -> None:
    """The server as process 1, copied from an image of its own, so that tasks' images need nothing."""
    volume, (container,) = "exec-server", spec["containers"]
    installing = _sandbox_container(settings, image, NEXT_TO_NOTHING)
    spec["initContainers"] = [
        {
            **installing,
            "name": volume,
            "command": [PROGRAM, "install", f"{INSTALL_PATH}/{posixpath.basename(PROGRAM)}"],
            "volumeMounts": [{"name": volume, "mountPath": INSTALL_PATH}],
        }
    ]
    spec["volumes"].append({"name": volume, "emptyDir": {"sizeLimit": "32Mi"}})
    container["command"] = [PROGRAM, "serve", "-listen", f":{settings.exec_server_port}"]
    container["volumeMounts"].append({"name": volume, "mountPath": posixpath.dirname(PROGRAM), "readOnly": True})


def _sandbox_container(settings: KubeSandbox, image: str, resources: Resources) -> JsonObject:
    request_memory = min(settings.request_memory_mb, resources.memory_mb)
    request_cpus = min(settings.request_cpus, resources.cpus)
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", IDLE],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": is_read_only(settings, resources),
            "capabilities": {
                "drop": ["ALL"],
                **({"add": list(settings.capabilities)} if settings.capabilities else {}),
            },
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": {
            "requests": {
                "memory": f"{request_memory}Mi",
                "cpu": f"{round(request_cpus * 1000)}m",
                "ephemeral-storage": "16Mi",
            },
            "limits": {
                "memory": f"{resources.memory_mb}Mi",
                "cpu": f"{round(resources.cpus * 1000)}m",
                "ephemeral-storage": f"{settings.scratch_mb}Mi",
            },
        },
        "volumeMounts": [
            {"name": f"writable-{number}", "mountPath": path}
            for number, path in enumerate(writable_folders(settings, resources))
        ],
    }


def _placement(settings: KubeSandbox) -> JsonObject:
    placement: JsonObject = {}
    if settings.image_pull_secrets:
        placement["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if settings.runtime_class is not None:
        placement["runtimeClassName"] = settings.runtime_class
    if settings.priority_class is not None:
        placement["priorityClassName"] = settings.priority_class
    if settings.node_selector:
        placement["nodeSelector"] = label_map(settings.node_selector)
    if settings.tolerations:
        placement["tolerations"] = toleration_list(settings.tolerations)
    return placement


def sandbox_pod(
    settings: KubeSandbox,
    name: str,
    image: str,
    resources: Resources,
    labels: Mapping[str, str],
    lease: JsonObject,
    avoid: Sequence[str] = (),
) -> JsonObject:
    """A plain pod as a sandbox; nodes that are to be avoided get it only when no other has room."""
    head = PODS.head(name, labels={**labels, ROLE_LABEL: ROLE_SANDBOX}, ownerReferences=owned_by(lease))
    spec = sandbox_pod_spec(settings, image, resources, lease_seconds=settings.lease_seconds)
    if avoid:
        elsewhere = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(avoid)}
        preference = {"weight": 100, "preference": {"matchExpressions": [elsewhere]}}
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
    return {**head, "spec": spec}


def network_policy(settings: KubeSandbox, run_id: str, owner: str, lease: JsonObject) -> JsonObject:
    """No way in, but for the trainer to an exec server, and out to the proxy's port alone; to nothing when there is no
    port. Of one owner, as its sandboxes are, so that nobody's end opens another's."""
    ingress: list[JsonObject] = []
    if settings.exec_server_image is not None:
        ingress.append(
            {
                "from": [{"podSelector": {"matchLabels": _of_run(settings.exec_server_clients, run_id)}}],
                "ports": [{"protocol": "TCP", "port": settings.exec_server_port}],
            }
        )
    egress: list[JsonObject] = []
    if settings.proxy_port is not None:
        egress.append(
            {
                "to": [{"podSelector": {"matchLabels": proxy_labels(settings, run_id)}}],
                "ports": [{"protocol": "TCP", "port": settings.proxy_port}],
            }
        )
    spec: JsonObject = {
        "podSelector": {"matchLabels": {OWNER_LABEL: owner}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    head = NETWORK_POLICIES.head(owner, labels=run_labels(run_id, owner), ownerReferences=owned_by(lease))
    return {**head, "spec": spec}


def proxy_labels(settings: KubeSandbox, run_id: str) -> dict[str, str]:
    """Of the pods that serve the proxy to the sandboxes of a run."""
    return _of_run(settings.proxy_selector, run_id)


def _of_run(labels: tuple[str, ...], run_id: str) -> dict[str, str]:
    """Labels of pods; those that the workflow names by their role are of this run alone, unless a run is named."""
    chosen = label_map(labels)
    return {RUN_LABEL: label_value(run_id), **chosen} if ROLE_LABEL in chosen else chosen


def prefetch_set(
    settings: KubeSandbox, run_id: str, owner: str, images: Sequence[str], lease: JsonObject
) -> JsonObject:
    """A DaemonSet that makes every node pull these images, each for a container of its own that idles."""
    labels = run_labels(run_id, owner, **{ROLE_LABEL: ROLE_PREFETCH})
    name = object_name("prefetch", owner, *images)
    spec = sandbox_pod_spec(settings.model_copy(update={"exec_server_image": None}), images[0], NEXT_TO_NOTHING)
    spec.pop("topologySpreadConstraints")
    spec |= {"restartPolicy": "Always", "volumes": []}
    spec["containers"] = [
        {**_pulling_container(settings, image), "name": f"image-{number}"} for number, image in enumerate(images)
    ]
    template = {"metadata": {"labels": {**labels, PREFETCH_LABEL: name}}, "spec": spec}
    head = DAEMON_SETS.head(name, labels=labels, ownerReferences=owned_by(lease))
    return {
        **head,
        "spec": {
            "selector": {"matchLabels": {PREFETCH_LABEL: name}},
            "updateStrategy": {"type": "OnDelete"},
            "template": template,
        },
    }


def _pulling_container(settings: KubeSandbox, image: str) -> JsonObject:
    container = {**_sandbox_container(settings, image, NEXT_TO_NOTHING), "volumeMounts": []}
    container["resources"]["requests"] = {"memory": "4Mi", "cpu": "1m"}
    return container
