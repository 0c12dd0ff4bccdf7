"""Reads files of a run from its volume when the pods that wrote them are gone: by a short pod that prints them.

The pod carries the run's label, so that a cleanup finds one that was left behind, and ends by itself; it sees the
volume read-only.
"""

import uuid
from collections.abc import AsyncIterator, Sequence

from agentic.cluster.client import KubeClient
from agentic.cluster.errors import WaitTimeoutError
from agentic.cluster.labels import STEP_LABEL, labels_of_run
from agentic.cluster.resources import PODS, JsonObject
from agentic.cluster.settings import ClusterSettings, label_map
from agentic.cluster.watching import Watcher
from agentic.errors import TransientError
from workflows.errors import CommandError

START_SECONDS = 180.0
"""How long the pod may take to start: an image may have to be pulled, a disk to be attached."""

STUCK = frozenset({"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError"})
"""Why a container waits for what will not come while somebody waits for the pod."""

LONGEST_SECONDS = 600
"""The pod ends after so long, whoever forgot it."""

PRINT = """
import glob, os, shutil, sys
root, patterns = sys.argv[1], sys.argv[2:]
found = {path for pattern in patterns for path in glob.glob(os.path.join(root, pattern))}
found = sorted(found, key=lambda path: (len(path), path))
for path in found:
    with open(path, "rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
sys.exit(0 if found else 66)
"""
"""What the pod runs: files one after the other, parts of a fan-out by their number."""

NO_FILE = 66
"""Its exit code when there is no such file."""


class UnreadableError(TransientError):
    """The volume cannot be read by a pod now."""


async def read_files(
    kube: KubeClient, settings: ClusterSettings, run_id: str, patterns: Sequence[str]
) -> AsyncIterator[bytes]:
    """The files of the run's folder that a pattern fits, one after the other.

    Raises:
        CommandError: there is none.
        UnreadableError: the pod does not start; names the files' place on the volume.
    """
    pod = reader_pod(settings, run_id, patterns)
    name = pod["metadata"]["name"]
    async with Watcher(kube, PODS, fields=f"metadata.name={name}") as pods:
        pods.remember(await kube.create(PODS, pod))
        try:
            where = f"claim {settings.runs.claim}, folder runs/{run_id}, {' '.join(patterns)}"
            await _started(pods, name, where)
            async for piece in kube.log(name, container="main", follow=True):
                yield piece
            code = await pods.wait_for(name, _end, timeout_seconds=60.0)
            if code == NO_FILE:
                raise CommandError(f"run {run_id} has no such file ({where})")
            if code:
                raise UnreadableError(f"the pod that reads {where} ended with exit code {code}: try again")
        finally:
            await kube.delete(PODS, name, grace_period_seconds=0)


async def _started(pods: Watcher, name: str, where: str) -> None:
    last: list[str] = []

    def has_started(pod: JsonObject | None) -> bool | None:
        if pod is None:
            raise UnreadableError(f"pod {name} was deleted before it could read ({where}): try again")
        last[:] = [_reason(pod)]
        if STUCK & {str(found.get("reason")) for found in _waiting(pod)}:
            raise UnreadableError(f"the pod that reads {where} cannot start: {last[0]}")
        return True if pod["status"].get("phase") in {"Running", "Succeeded", "Failed"} else None

    try:
        await pods.wait_for(name, has_started, timeout_seconds=START_SECONDS)
    except WaitTimeoutError as error:
        reason = last[0] if last and last[0] else str(error)
        raise UnreadableError(f"the pod that reads {where} does not start: {reason}") from error


def _reason(pod: JsonObject) -> str:
    said = [f"{found.get('reason')}: {found.get('message', '')}" for found in _waiting(pod) if found.get("reason")]
    said += [found["message"] for found in (pod.get("status") or {}).get("conditions") or [] if found.get("message")]
    return " ".join(said[0].split()) if said else ""


def _waiting(pod: JsonObject) -> list[JsonObject]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return [(found.get("state") or {}).get("waiting") or {} for found in statuses]


def _end(pod: JsonObject | None) -> int | None:
    """The exit code, once there is one."""
    if pod is None:
        raise UnreadableError("the pod that read the files was deleted: try again")
    for status in pod["status"].get("containerStatuses") or []:
        ended = (status.get("state") or {}).get("terminated")
        if ended:
            return int(ended["exitCode"])
    return None


def reader_pod(settings: ClusterSettings, run_id: str, patterns: Sequence[str]) -> JsonObject:
    """A pod that prints the files and ends."""
    mount = {"name": "runs", "mountPath": settings.workspace_path, "readOnly": True}
    root = f"{settings.workspace_path}/runs/{run_id}"
    container = {
        "name": "main",
        "image": settings.steps_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", PRINT, root, *patterns],
        "volumeMounts": [mount],
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"cpu": "500m", "memory": "256Mi"},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
    }
    secret = settings.image_pull_secret
    claim = {"claimName": settings.runs.claim, "readOnly": True}
    name = f"agentic-rl-reader-{uuid.uuid4().hex[:8]}"
    return PODS.head(name, labels=labels_of_run(run_id, {STEP_LABEL: "reader"})) | {
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LONGEST_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "nodeSelector": label_map(settings.node_selector),
            "containers": [container],
            "volumes": [{"name": "runs", "persistentVolumeClaim": claim}],
            **({"imagePullSecrets": [{"name": secret}]} if secret else {}),
        }
    }
