"""What pods' states mean, in the very words of the components that write them."""

from typing import Any

import pytest

from agentic.cluster.troubles.waiting import ABOUT_IMAGES, HOPELESS, kind_of_waiting
from agentic.sandbox.kube.verdict import Loss, PodState, judge_pod, why_lost, why_unpullable

OOM = "it used more memory than its limit and was killed (OOMKilled, exit code 137)"

DEADLINE = "Pod was active on the node longer than the specified deadline"
EVICTED = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 43496Ki. Container sandbox was using "
    "713412Ki, request is 128Mi, has larger consumption of memory. "
)
DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. "
NO_ROOM = (
    "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 "
    "Insufficient cpu. preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No "
    "preemption victims found for incoming pod."
)
NOT_FOUND = (
    'failed to pull and unpack image "docker.io/swe-bench/none:1": failed to resolve reference '
    '"docker.io/swe-bench/none:1": docker.io/swe-bench/none:1: not found'
)
UNAUTHORIZED = (
    'Back-off pulling image "registry.example/a:1": ErrImagePull: failed to pull and unpack image '
    '"registry.example/a:1": failed to resolve reference "registry.example/a:1": pull access denied, repository does '
    "not exist or may require authorization: authorization failed: no basic auth credentials"
)


def pod(phase: str = "Pending", state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    ready = bool(state and "running" in state)
    containers = [{"name": "sandbox", "state": state, "ready": ready}] if state else []
    return {"metadata": {"name": "p"}, "status": {"phase": phase, "containerStatuses": containers, **status}}


def with_memory(body: dict[str, Any], request: str, limit: str) -> dict[str, Any]:
    resources = {"requests": {"memory": request}, "limits": {"memory": limit}}
    return {**body, "spec": {"containers": [{"name": "other"}, {"name": "sandbox", "resources": resources}]}}


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


CASES = {
    "running": (pod("Running", {"running": {}}), PodState.RUNNING, ""),
    "created a moment ago": (pod(), PodState.WAITING, "it is being started"),
    "creating": (pod(state=waiting("ContainerCreating")), PodState.WAITING, "it is being started"),
    "no room": (
        pod(**condition("PodScheduled", "False", "Unschedulable", NO_ROOM)),
        PodState.WAITING,
        "no node has room (0/3 nodes are available: 1 node(s) had untolerated taint",
    ),
    "gated": (
        pod(**condition("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked due to non-empty gates")),
        PodState.WAITING,
        "it waits for a gate (Scheduling is blocked due to non-empty gates)",
    ),
    "image missing": (
        pod(state=waiting("ErrImagePull", NOT_FOUND)),
        PodState.UNPULLABLE,
        "the registry does not have the image: build and push it, or correct its name and tag (failed to pull",
    ),
    "image back-off": (
        pod(state=waiting("ImagePullBackOff", 'Back-off pulling image "swe-bench/none:1"')),
        PodState.UNPULLABLE,
        "the image cannot be pulled: read the registry's answer",
    ),
    "image refused": (
        pod(state=waiting("ImagePullBackOff", UNAUTHORIZED)),
        PodState.UNPULLABLE,
        "the registry does not let the node pull: 401, 403, or a repository that is not shown: name a Secret",
    ),
    "image name wrong": (
        pod(state=waiting("InvalidImageName", 'Failed to apply default image tag "a b": couldn\'t parse image name')),
        PodState.LOST,
        "what is set as image is no image name: correct the image's name in the settings or the task (Failed",
    ),
    "secret missing": (
        pod(state=waiting("CreateContainerConfigError", 'secret "none" not found')),
        PodState.LOST,
        "a pod names a Secret, or a key in one, that is not there: create the Secret",
    ),
    "no shell in the image": (
        pod("Failed", ended(128, "StartError")),
        PodState.LOST,
        "its first process ended with exit code 128",
    ),
    "evicted for memory": (pod("Failed", reason="Evicted", message=EVICTED), PodState.LOST, "it was evicted (The node"),
    "evicted for disk": (
        pod("Failed", ended(137), reason="Evicted", message=DISK),
        PodState.LOST,
        "it was evicted (Pod ephemeral local storage usage exceeds the total limit of containers 2Gi.)",
    ),
    "out of memory": (
        with_memory(pod("Failed", ended(137, "OOMKilled")), "768Mi", "768Mi"),
        PodState.LOST,
        OOM,
    ),
    "out of memory, its own or its node's": (
        with_memory(pod("Failed", ended(137, "OOMKilled")), "128Mi", "768Mi"),
        PodState.LOST,
        "it was killed because memory ran out, within its limit or on its node (OOMKilled, exit code 137)",
    ),
    "shut down after one process was killed for memory": (
        with_memory(pod("Failed", ended(137, "OOMKilled"), reason="Terminated", message="Shutdown."), "9Mi", "9Mi"),
        PodState.LOST,
        "its node was shut down (Shutdown.)",
    ),
    "lease over": (
        pod("Failed", ended(137), reason="DeadlineExceeded", message=DEADLINE),
        PodState.LOST,
        f"its lease has run out ({DEADLINE})",
    ),
    "no room after all": (
        pod(
            "Failed",
            reason="OutOfcpu",
            message="Pod was rejected: Node didn't have enough resource: cpu, requested: 2, used: 7, capacity: 8",
        ),
        PodState.LOST,
        "its node had no room after all (Pod was rejected: Node didn't have enough resource: cpu",
    ),
    "preempted": (
        pod(
            "Failed",
            **condition(
                "DisruptionTarget",
                "True",
                "PreemptionByScheduler",
                "default-scheduler: preempting to accommodate a higher priority pod",
            ),
        ),
        PodState.LOST,
        "it was preempted by a pod of higher priority (default-scheduler: preempting",
    ),
    "node shut down": (
        pod("Failed", reason="Terminated", message="Pod was terminated in response to imminent node shutdown."),
        PodState.LOST,
        "its node was shut down (Pod was terminated in response to imminent node shutdown.)",
    ),
    "node silent": (
        pod(
            "Running",
            {"running": {}},
            **condition("Ready", "False", "NodeStatusUnknown", "Kubelet stopped posting node status."),
        ),
        PodState.LOST,
        "its node does not answer (Kubelet stopped posting node status.)",
    ),
    "node lost": (
        pod("Running", {"running": {}}, reason="NodeLost", message="Node n1 which was running pod p is unresponsive"),
        PodState.LOST,
        "its node is lost (Node n1 which was running pod p is unresponsive)",
    ),
    "first process ended well": (pod("Succeeded", ended(0)), PodState.LOST, "its first process ended with exit code 0"),
    "container restarting": (
        pod("Running", waiting("CrashLoopBackOff", "back-off 10s restarting failed container=sandbox pod=p")),
        PodState.UNPULLABLE,
        "the container ends again and again: read its last words",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pods_state_is_told_in_one_line(case: str) -> None:
    body, state, reason = CASES[case]
    verdict = judge_pod(body)
    assert verdict.state is state
    assert verdict.reason.startswith(reason) if reason else not verdict.reason
    assert "\n" not in verdict.reason


@pytest.mark.parametrize("reason", sorted(ABOUT_IMAGES))
def test_each_reason_of_kubelet_about_an_image_is_in_the_catalogue(reason: str) -> None:
    kind = kind_of_waiting(reason, "")
    assert kind is not None
    verdict = judge_pod(pod(state=waiting(reason)))
    assert verdict.reason == f"{kind.seen}: {kind.remedy}"
    assert why_unpullable({"state": waiting(reason)}) == verdict.reason
    assert verdict.is_permanent == (reason in HOPELESS)


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", ""])
def test_a_container_that_is_being_made_is_in_no_trouble(reason: str) -> None:
    assert kind_of_waiting(reason, "") is None
    assert why_unpullable({"state": waiting(reason)}) == ""


def test_a_pod_that_is_being_deleted_is_lost_and_says_who_did_it() -> None:
    body = pod(
        "Running",
        {"running": {}},
        **condition(
            "DisruptionTarget", "True", "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
        ),
    )
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    verdict = judge_pod(body)
    assert verdict.state is PodState.LOST
    assert verdict.reason.startswith("its node became unreachable or was tainted (Taint manager: deleting")


def test_the_latest_event_explains_a_wait() -> None:
    events = [
        {"reason": "Scheduled", "message": "Successfully assigned", "lastTimestamp": "2026-01-01T00:00:09Z"},
        {"reason": "FailedMount", "message": "old", "lastTimestamp": "2026-01-01T00:00:01Z"},
        {
            "reason": "FailedCreatePodSandBox",
            "message": "Failed to create pod sandbox: no IP addresses available in range",
            "lastTimestamp": "2026-01-01T00:00:05Z",
        },
    ]
    assert judge_pod(pod(), events).reason == (
        "it is being started (FailedCreatePodSandBox: Failed to create pod sandbox: no IP addresses available in range)"
    )


def test_a_container_that_was_started_again_is_another_sandbox() -> None:
    body = with_memory(pod("Running", {"running": {}}), "768Mi", "768Mi")
    container = body["status"]["containerStatuses"][0]
    container |= {"containerID": "containerd://b", "lastState": ended(137, "OOMKilled")}
    assert why_lost(body, "containerd://b") is None
    assert why_lost(body, "containerd://a") == Loss(f"its container was started again: {OOM}", is_own_doing=True)
    loss = why_lost(with_memory(body, "128Mi", "768Mi"), "containerd://a")
    assert loss is not None
    assert not loss.is_own_doing
    assert why_lost(None, "containerd://a") == Loss("its pod was deleted")


def test_a_container_that_ends_to_take_another_image_is_waited_for() -> None:
    body = pod("Running", ended(143))
    assert judge_pod(body).state is PodState.LOST
    body["spec"] = {"restartPolicy": "Always"}
    assert judge_pod(body).state is PodState.UNPULLABLE
    assert why_lost(body, "") == Loss("its first process ended with exit code 143")


@pytest.mark.parametrize(
    ("message", "is_own_doing"),
    [
        ('Container sandbox exceeded its local ephemeral storage limit "2Gi". ', True),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ", True),
        ('Usage of EmptyDir volume "writable-0" exceeds the limit "2Gi". ', True),
        ("The node was low on resource: ephemeral-storage. Threshold quantity: 1, available: 0. ", False),
        ("The node was low on resource: memory. Container sandbox was using 9Mi, request is 1Mi. ", False),
        ("Pod was evicted by somebody", False),
    ],
)
def test_what_a_sandbox_did_to_itself_is_told_from_what_its_node_did(message: str, is_own_doing: bool) -> None:
    body = pod("Failed", reason="Evicted", message=message)
    loss = why_lost(body, "")
    assert loss is not None
    assert loss.reason.startswith("it was evicted (")
    assert loss.is_own_doing is is_own_doing


@pytest.mark.parametrize("reason", ["OOMKilled", "Error", "ContainerStatusUnknown"])
def test_only_the_kernels_own_limit_makes_a_killed_container_its_own_doing(reason: str) -> None:
    loss = why_lost(with_memory(pod("Failed", ended(137, reason)), "1Gi", "1Gi"), "")
    assert loss is not None
    assert loss.is_own_doing is (reason == "OOMKilled")


@pytest.mark.parametrize(("request_", "limit"), [("128Mi", "768Mi"), ("", ""), ("", "768Mi"), ("768Mi", "")])
def test_a_kill_for_memory_that_was_not_all_set_aside_may_be_the_nodes_shortage(request_: str, limit: str) -> None:
    killed = pod("Failed", ended(137, "OOMKilled"))
    for body in (with_memory(killed, request_, limit), killed):
        loss = why_lost(body, "")
        assert loss is not None
        assert not loss.is_own_doing


TAINTED = condition("DisruptionTarget", "True", "DeletionByTaintManager", "deleting due to NoExecute taint")


@pytest.mark.parametrize("status", [{"reason": "Terminated"}, {"reason": "Evicted", "message": EVICTED}, TAINTED, {}])
def test_a_kill_for_memory_in_a_pod_that_was_ended_from_outside_is_not_its_own_doing(status: dict[str, Any]) -> None:
    body = with_memory(pod("Failed", ended(137, "OOMKilled"), **status), "768Mi", "768Mi")
    if not status:
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    loss = why_lost(body, "")
    assert loss is not None
    assert not loss.is_own_doing
    assert loss.reason != OOM or not status


@pytest.mark.parametrize("status", [TAINTED, {}])
def test_a_pod_over_its_disk_that_others_ended_too_is_not_its_own_doing(status: dict[str, Any]) -> None:
    body = pod("Failed", reason="Evicted", message=DISK, **status)
    assert why_lost(body, "") == Loss(f"it was evicted ({DISK.strip()})", is_own_doing=not status)
