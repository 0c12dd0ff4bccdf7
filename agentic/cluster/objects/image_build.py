"""The Job that builds one image: a client of BuildKit that reads the task's folder from the claim of the data sets.

The guide's users find it by `kubectl get jobs -l type=image-build`. One attempt: whoever makes it decides about more.
Its pod has no token of the cluster and no privilege; what it runs as root runs in BuildKit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from agentic.cluster.labels import labels_of_run
from agentic.cluster.objects.volumes import workspace_mounts, workspace_volumes
from agentic.cluster.resources import JOBS, JsonObject
from agentic.cluster.settings import ClusterSettings, label_map

TYPE_LABEL, IMAGE_BUILD = "type", "image-build"
DOCKER_CONFIG = "/docker"
"""Where keys of registries are: `config.json` of the Secret."""
CERTIFICATES = "/certs"
"""Where `ca.pem`, `cert.pem` and `key.pem` for BuildKit are."""

SHARE: Mapping[str, str] = MappingProxyType({"cpu": "100m", "memory": "256Mi"})
"""A client sends a folder and waits."""


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """What differs from image to image, and from site to site."""

    name: str
    """Of the Job; derived from what is built, so that a repeat finds it."""
    image: str
    """With `buildctl`."""
    command: Sequence[str]
    """Of the container."""
    deadline_seconds: int
    """For the attempt, waiting for a node included."""
    keep_seconds: int
    """How long the Job stays when it has ended."""
    registry_secret: str | None = None
    """Of type `kubernetes.io/dockerconfigjson`."""
    tls_secret: str | None = None
    """With the client's certificates."""
    labels: Mapping[str, str] = MappingProxyType({})
    annotations: Mapping[str, str] = MappingProxyType({})


def image_build(settings: ClusterSettings, run_id: str, build: ImageBuild) -> JsonObject:
    """The container's message is what it wrote to its termination log; if it failed without a word, the end of its log."""
    labels = labels_of_run(run_id, {TYPE_LABEL: IMAGE_BUILD, **build.labels})
    metadata = {"namespace": settings.namespace, "labels": labels, "annotations": dict(build.annotations)}
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": build.deadline_seconds,
        "ttlSecondsAfterFinished": build.keep_seconds,
        "template": {"metadata": {"labels": labels}, "spec": _pod(settings, build)},
    }
    return {**JOBS.head(build.name, **metadata), "spec": spec}


def _pod(settings: ClusterSettings, build: ImageBuild) -> JsonObject:
    mounts = _mounts(settings)
    wanted = {mount["name"] for mount in mounts}
    volumes = [volume for volume in workspace_volumes(settings) if volume["name"] in wanted]
    keys = list(_keys(build))
    spec: JsonObject = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(build, [*mounts, *(mount for _, mount in keys)])],
        "volumes": [*volumes, *(volume for volume, _ in keys)],
    }
    if settings.image_pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": settings.image_pull_secret}]
    if settings.node_selector:
        spec["nodeSelector"] = label_map(settings.node_selector)
    return spec


def _keys(build: ImageBuild) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Volumes of Secrets, each with its mount."""
    if build.registry_secret is not None:
        items = [{"key": ".dockerconfigjson", "path": "config.json"}]
        volume = {"name": "registry", "secret": {"secretName": build.registry_secret, "items": items}}
        yield volume, {"name": "registry", "mountPath": DOCKER_CONFIG, "readOnly": True}
    if build.tls_secret is not None:
        volume = {"name": "certs", "secret": {"secretName": build.tls_secret}}
        yield volume, {"name": "certs", "mountPath": CERTIFICATES, "readOnly": True}


def _container(build: ImageBuild, mounts: Sequence[JsonObject]) -> JsonObject:
    variables = [{"name": "DOCKER_CONFIG", "value": DOCKER_CONFIG}] if build.registry_secret is not None else []
    return {
        "name": "build",
        "image": build.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(build.command),
        "env": variables,
        "resources": {"requests": dict(SHARE), "limits": dict(SHARE)},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": list(mounts),
    }


def _mounts(settings: ClusterSettings) -> list[JsonObject]:
    """The data sets and folders of the nodes, read-only, where the workflow's steps see them."""
    datasets = f"{settings.workspace_path}/datasets"
    return [
        {**mount, "readOnly": True}
        for mount in workspace_mounts(settings)
        if mount["mountPath"] == datasets or mount["name"].startswith("host-")
    ]
