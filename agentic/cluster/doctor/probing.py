"""What a pod of the run would reach, tried by one short pod with the image, the account and the place of a light step.

That it gets to run is tried along: its image is pulled with the run's Secret, and the cluster's admission sees it.
"""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentic.cluster.apply import find
from agentic.cluster.client import KubeClient
from agentic.cluster.doctor import reaching
from agentic.cluster.doctor.asking import account_of
from agentic.cluster.doctor.examining import if_allowed
from agentic.cluster.doctor.facts import Facts, Target
from agentic.cluster.labels import ROLE_LABEL, ROLE_PROBE, shared_labels
from agentic.cluster.objects.buildkit import address
from agentic.cluster.resources import EVENTS, PODS, SERVICES, JsonObject, name_of, uid_of
from agentic.cluster.settings import ClusterSettings, label_map, toleration_list
from agentic.cluster.sweep import sweep_short_lived
from agentic.cluster.troubles import Evidence, Trouble, find_troubles, make_trouble

CONTAINER = "probe"
LIFE_SECONDS = 300
"""The pod ends by itself then, whatever became of us."""
PATIENCE_SECONDS = 180.0
"""Until it has run: the steps' image may have to be pulled."""
LASTING_SECONDS = 30.0
"""How long a trouble has to last to be believed: a scheduler or a registry may be wrong once."""
LOOK_SECONDS = 0.5


async def check_reach(client: KubeClient, facts: Facts) -> list[Trouble]:
    """Starts the pod, waits for its end, and removes it; and those before it whose doctor was killed."""
    await if_allowed(sweep_short_lived(client, facts.cluster.namespace, ROLE_PROBE, LIFE_SECONDS))
    targets = await targets_of(client, facts)
    body = probe_pod(facts.cluster, targets, await account_of(client, facts))
    pod = await client.create(PODS, body, namespace=facts.cluster.namespace)
    try:
        answers, troubles = await _wait(client, facts, name_of(pod))
    finally:
        await client.delete(PODS, name_of(pod), namespace=facts.cluster.namespace, uid=uid_of(pod))
    return troubles or list(judge_answers(targets, answers))


async def targets_of(client: KubeClient, facts: Facts) -> list[Target]:
    """With the namespace's BuildKit where a run has made it; the first build makes it elsewhere."""
    cluster, targets = facts.cluster, list(facts.targets)
    if not facts.builds_in_namespace:
        return targets
    service = await if_allowed(find(client, SERVICES, cluster.buildkit.name, cluster.namespace))
    if service is not None:
        where = address(cluster).removeprefix("tcp://")
        targets.append(Target("builder-unreachable", "BuildKit", "tcp", where))
    return targets


def judge_answers(targets: Sequence[Target], answers: Sequence[str]) -> Iterator[Trouble]:
    """Pure."""
    for target, answer in zip(targets, answers, strict=True):
        if answer:
            yield make_trouble(target.trouble, f"pod -> {target.what}", f"{target.address}: {answer}")


def probe_pod(cluster: ClusterSettings, targets: Sequence[Target], account: str) -> JsonObject:
    addresses = json.dumps([[target.kind, target.address] for target in targets])
    script = Path(reaching.__file__).read_text()
    container = {
        "name": CONTAINER,
        "image": cluster.steps_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", 'exec python3 -S -E -c "$1" "$2" > /dev/termination-log', "sh", script, addresses],
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: JsonObject = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_SECONDS,
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "nodeSelector": label_map(cluster.node_selector),
        "tolerations": toleration_list(cluster.tolerations),
    }
    if cluster.image_pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": cluster.image_pull_secret}]
    name = f"agentic-rl-doctor-{uuid.uuid4().hex[:8]}"
    return {**PODS.head(name, labels=shared_labels(**{ROLE_LABEL: ROLE_PROBE})), "spec": spec}


async def _wait(client: KubeClient, facts: Facts, name: str) -> tuple[list[str], list[Trouble]]:
    """What the pod said, and why it did not come to say anything, if it did not."""
    began = time.monotonic()
    while True:
        pod = await client.get(PODS, name, namespace=facts.cluster.namespace)
        said = answers_of(pod)
        if said is not None:
            return said, []
        waited = time.monotonic() - began
        if waited > LASTING_SECONDS or _has_ended(pod):
            troubles = await _look(client, facts, pod)
            if troubles:
                return [], troubles
        if waited > PATIENCE_SECONDS or _has_ended(pod):
            message = f"it is {pod['status'].get('phase')} after {waited:.0f} s"
            return [], [make_trouble("timed-out", f"pod {name}", message)]
        await asyncio.sleep(LOOK_SECONDS)


async def _look(client: KubeClient, facts: Facts, pod: JsonObject) -> list[Trouble]:
    events = await client.list(EVENTS, namespace=facts.cluster.namespace, fields=f"involvedObject.name={name_of(pod)}")
    return find_troubles(Evidence(pods=[pod], events=events.items))


def answers_of(pod: JsonObject) -> list[str] | None:
    """What it left as its container's message; None before it has."""
    for status in pod["status"].get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode") == 0:
            with contextlib.suppress(ValueError, TypeError):  # Then the image has another idea of what to run.
                return [str(one) for one in json.loads(ended.get("message") or "null")]
    return None


def _has_ended(pod: JsonObject) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")
