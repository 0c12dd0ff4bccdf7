"""Jobs that build one image each by BuildKit's client, and the one that sees whether BuildKit can be reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentic.cluster.labels import ROLE_LABEL, labels_of_run
from agentic.cluster.resources import JOBS, JsonObject
from agentic.cluster.settings import ClusterSettings, label_map, toleration_list

TYPE_LABEL, TYPE = "type", "image-build"
"""As people look for them: `kubectl get jobs -l type=image-build`."""
KEY_LABEL = "agentic-rl/image"
"""What the Job's image is built from."""
SHARD_LABEL = "agentic-rl/shard"
"""Which part of a task set the image is in."""
ROLE = "image-build"
"""Of pods: BuildKit lets these in."""
CONTAINER = "build"
LOGIN_FOLDER, TLS_FOLDER = "/agentic/login", "/agentic/tls"
"""Where a build finds the credentials of registries and the certificates for BuildKit."""
ENDING_SECONDS = 5


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """One Job."""

    name: str
    run_id: str
    shard: str
    key: str
    command: Sequence[str]
    image: str
    """With the program of the command."""
    deadline_seconds: int
    keep_seconds: int
    login_secret: str | None = None
    """Of type kubernetes.io/dockerconfigjson."""
    tls_secret: str | None = None
    has_workspace: bool = False
    """Whether the claim of runs is to be seen too, because the authorities of registries are a file there."""
    owner: JsonObject | None = field(default=None)
    """Reference to what the Job goes with."""


def image_build_job(cluster: ClusterSettings, build: ImageBuild) -> JsonObject:
    """One attempt: whether another follows is for whoever reads its last words to say."""
    labels = labels_of_run(build.run_id, {TYPE_LABEL: TYPE, SHARD_LABEL: build.shard, KEY_LABEL: build.key})
    metadata: JsonObject = {"namespace": cluster.namespace, "labels": labels}
    if build.owner is not None:
        metadata["ownerReferences"] = [build.owner]
    spec: JsonObject = {
        "backoffLimit": 0,
        "completions": 1,
        "parallelism": 1,
        "activeDeadlineSeconds": build.deadline_seconds,
        "ttlSecondsAfterFinished": build.keep_seconds,
        "template": {"metadata": {"labels": {**labels, ROLE_LABEL: ROLE}}, "spec": _pod(cluster, build)},
    }
    return {**JOBS.head(build.name, **metadata), "spec": spec}


def _pod(cluster: ClusterSettings, build: ImageBuild) -> JsonObject:
    volumes, mounts = _volumes(cluster, build)
    secret, tolerations = cluster.image_pull_secret, toleration_list(cluster.tolerations)
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": ENDING_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(build, mounts)],
        "volumes": volumes,
        **({"imagePullSecrets": [{"name": secret}]} if secret else {}),
        **({"nodeSelector": label_map(cluster.node_selector)} if cluster.node_selector else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        **({"priorityClassName": cluster.priority_class} if cluster.priority_class is not None else {}),
    }


def _container(build: ImageBuild, mounts: Sequence[JsonObject]) -> JsonObject:
    """The client only sends files and prints: the work is BuildKit's."""
    return {
        "name": CONTAINER,
        "image": build.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(build.command),
        "env": [{"name": "DOCKER_CONFIG", "value": LOGIN_FOLDER}],
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # The end of what it printed says why it failed, without a right to read logs.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(mounts),
    }


def _volumes(cluster: ClusterSettings, build: ImageBuild) -> tuple[list[JsonObject], list[JsonObject]]:
    root = cluster.workspace_path
    claims = {f"{root}/datasets": ("datasets", cluster.datasets.claim)}
    if build.has_workspace:
        claims = {root: ("runs", cluster.runs.claim), **claims}
    volumes: list[JsonObject] = []
    mounts: list[JsonObject] = []
    for path, (name, claim) in claims.items():
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": name, "mountPath": path, "readOnly": True})
    for name, secret, folder in (("login", build.login_secret, LOGIN_FOLDER), ("tls", build.tls_secret, TLS_FOLDER)):
        if secret is not None:
            # A missing one is told by whoever asks for it, instead of by a pod that never starts.
            volumes.append({"name": name, "secret": {"secretName": secret, "optional": True, **_items(name)}})
            mounts.append({"name": name, "mountPath": folder, "readOnly": True})
    return volumes, mounts


def _items(volume: str) -> Mapping[str, object]:
    """The Secret's own key is not the name that clients look for."""
    return {"items": [{"key": ".dockerconfigjson", "path": "config.json"}]} if volume == "login" else {}
