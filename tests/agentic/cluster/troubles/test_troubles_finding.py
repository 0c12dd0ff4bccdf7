"""What is told once, what is left out, and that a cluster where all is well shows nothing."""

from typing import Any

import pytest

from agentic.cluster.troubles import Evidence, find_troubles, grouped

BACK_OFF = 'Back-off pulling image "registry.example/a:1"'
NOT_FOUND = (
    'Failed to pull image "registry.example/a:1": failed to pull and unpack image "registry.example/a:1": failed to '
    'resolve reference "registry.example/a:1": registry.example/a:1: not found'
)


def pod(name: str, *, ready: bool = False, phase: str = "Pending", **state: Any) -> dict[str, Any]:
    """With one container in this state."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    statuses = [{"name": "main", "ready": ready, **state}]
    status = {"phase": phase, "conditions": conditions, "containerStatuses": statuses}
    return {"kind": "Pod", "metadata": {"name": name}, "status": status}


def event(name: str, reason: str, message: str, kind: str = "Pod") -> dict[str, Any]:
    return {"involvedObject": {"kind": kind, "name": name}, "reason": reason, "message": message}


def names(evidence: Evidence) -> list[str]:
    return [trouble.name for trouble in find_troubles(evidence)]


def test_nothing_shows_nothing() -> None:
    assert find_troubles(Evidence()) == []


def test_a_healthy_cluster_shows_nothing_although_it_had_its_troubles_on_the_way() -> None:
    running = pod("head", ready=True, phase="Running", state={"running": {}})
    node = {
        "kind": "Node",
        "metadata": {"name": "gpu-1"},
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                },
                {"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure"},
            ]
        },
    }
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "verl-runs"}, "status": {"phase": "Bound"}}
    ray = {
        "kind": "RayCluster",
        "metadata": {"name": "raycluster-verl"},
        "status": {
            "state": "ready",
            "conditions": [
                {"type": "HeadPodReady", "status": "True", "reason": "HeadPodRunningAndReady"},
                {"type": "RayClusterProvisioned", "status": "True", "reason": "AllPodRunningAndReadyFirstTime"},
                {"type": "RayClusterSuspended", "status": "False", "reason": "RayClusterSuspended"},
            ],
        },
    }
    events = [
        event("head", "FailedScheduling", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        event("head", "Unhealthy", "Readiness probe failed: success"),
        event("head", "Scheduled", "Successfully assigned rl/head to gpu-1"),
        event(
            "verl-runs", "FailedBinding", "no persistent volumes available for this claim and no storage class is set"
        )
        | {"involvedObject": {"kind": "PersistentVolumeClaim", "name": "verl-runs"}},
        event("raycluster-verl", "CreatedHeadPod", "Created head Pod rl/head", "RayCluster"),
    ]
    logs = {"train": "step:1 - training/global_step:1\n(TaskRunner pid=1) checkpoint saved\n"}
    evidence = Evidence(
        pods=[running, pod("done", phase="Succeeded")], events=events, objects=[node, claim, ray], logs=logs
    )
    assert find_troubles(evidence) == []


def test_a_pod_that_was_started_again_and_is_well_shows_nothing_of_it() -> None:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    running = {"state": {"running": {}}, "lastState": ended}
    assert names(Evidence(pods=[pod("buildkitd", ready=True, phase="Running", **running)])) == []
    assert names(Evidence(pods=[pod("buildkitd", ready=False, phase="Running", **running)])) == ["out-of-memory"]
    past = Evidence(pods=[pod("head", ready=True, phase="Running", **running)], with_past=True)
    assert names(past) == ["out-of-memory"], "whoever asks why it was started again is told"


def test_a_pod_that_is_well_and_is_about_to_be_taken_away_is_told() -> None:
    leaving = pod("head", ready=True, phase="Running", state={"running": {}})
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "taint"}
    leaving["status"]["conditions"].append(condition)
    assert names(Evidence(pods=[leaving])) == ["node-lost"]


@pytest.mark.parametrize(
    ("labels", "setting"),
    [
        ({"ray.io/node-type": "head", "agentic-rl/role": "trainer"}, "cluster.head.memory"),
        ({"ray.io/node-type": "worker", "agentic-rl/role": "trainer"}, "cluster.workers.memory"),
        ({"agentic-rl/step": "report"}, "cluster.light.memory"),
        ({"agentic-rl/step": "train"}, "cluster.light.memory"),
        ({"agentic-rl/step": "download-model"}, "cluster.heavy.memory"),
        ({"agentic-rl/role": "sandbox"}, "sandbox.memory_mb"),
        ({"app": "buildkitd"}, "cluster.buildkit.memory"),
    ],
)
def test_memory_is_to_be_raised_where_it_ran_out_and_nowhere_else(labels: dict[str, str], setting: str) -> None:
    killed = pod("x", phase="Failed", state={"terminated": {"reason": "OOMKilled", "exitCode": 137}})
    killed["metadata"]["labels"] = labels
    (trouble,) = find_troubles(Evidence(pods=[killed]))
    assert trouble.remedy.startswith(f"raise {setting}")
    others = {"cluster.head.memory", "cluster.light.memory", "cluster.heavy.memory"} - {setting}
    assert not [other for other in others if other in trouble.remedy]


def test_memory_of_the_trainer_is_told_apart_from_that_of_the_steps_own_pod() -> None:
    node = {"type": "Pod", "displayName": "train(0)", "phase": "Failed", "message": "main: OOMKilled (exit code 137)"}
    workflow = {"kind": "Workflow", "metadata": {"name": "w"}, "status": {"phase": "Failed", "nodes": {"t": node}}}
    (own,) = find_troubles(Evidence(objects=[workflow]))
    assert "cluster.light.memory" in own.remedy
    workflow["status"]["nodes"] = {}
    said = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
    (trainers,) = find_troubles(Evidence(objects=[workflow], logs={"train": said}))
    assert "cluster.head.memory" in trainers.remedy


def test_an_image_that_took_too_long_is_told_its_own_setting() -> None:
    job = {"kind": "Job", "metadata": {"name": "build-x", "labels": {"type": "image-build"}}, "status": {}}
    said = event("build-x", "DeadlineExceeded", "Job was active longer than specified deadline", "Job")
    (trouble,) = find_troubles(Evidence(objects=[job], events=[said]))
    assert (trouble.name, "images.build_timeout_seconds" in trouble.remedy) == ("deadline-exceeded", True)


def test_a_cause_in_an_event_replaces_the_general_word_in_the_state() -> None:
    waiting = pod("a", state={"waiting": {"reason": "ImagePullBackOff", "message": BACK_OFF}})
    assert names(Evidence(pods=[waiting])) == ["image-not-pulled"]
    assert names(Evidence(pods=[waiting], events=[event("a", "Failed", NOT_FOUND)])) == ["image-missing"]


def test_a_cause_at_another_pod_replaces_nothing() -> None:
    waiting = pod("a", state={"waiting": {"reason": "ImagePullBackOff", "message": BACK_OFF}})
    evidence = Evidence(pods=[waiting], events=[event("b", "Failed", NOT_FOUND)])
    assert sorted(names(evidence)) == ["image-missing", "image-not-pulled"]


def test_the_end_of_a_container_before_its_restart_explains_the_crash_loop() -> None:
    looping = pod(
        "a",
        state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container=main"}},
        lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    )
    assert names(Evidence(pods=[looping])) == ["out-of-memory"]


def test_the_scheduler_may_give_several_reasons_at_once() -> None:
    message = "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 node(s) had untolerated taint(s)."
    evidence = Evidence(events=[event("a", "FailedScheduling", message)])
    assert sorted(names(evidence)) == ["no-room-for-cpu", "no-room-for-memory", "nodes-tainted"]


def test_a_try_that_was_followed_by_a_success_is_forgotten() -> None:
    nodes = {
        "r": {"type": "Retry", "displayName": "train", "phase": "Succeeded", "children": ["t-0", "t-1"]},
        "t-0": {
            "type": "Pod",
            "displayName": "train(0)",
            "phase": "Failed",
            "message": "main: OOMKilled (exit code 137)",
        },
        "t-1": {"type": "Pod", "displayName": "train(1)", "phase": "Succeeded"},
        "e-0": {"type": "Pod", "displayName": "evaluate(0)", "phase": "Error", "message": "pod deleted"},
    }
    workflow = {"kind": "Workflow", "metadata": {"name": "w"}, "status": {"phase": "Failed", "nodes": nodes}}
    (trouble,) = find_troubles(Evidence(objects=[workflow]))
    assert (trouble.name, trouble.where) == ("pod-deleted", "workflow w, step evaluate")


def test_a_step_its_pod_and_its_log_tell_a_trouble_once() -> None:
    failed = pod("w-train-1", phase="Failed", state={"terminated": {"reason": "OOMKilled", "exitCode": 137}})
    failed["metadata"]["annotations"] = {"workflows.argoproj.io/node-name": "w.train(0)"}
    node = {"type": "Pod", "displayName": "train(0)", "phase": "Failed", "message": "main: OOMKilled (exit code 137)"}
    workflow = {"kind": "Workflow", "metadata": {"name": "w"}, "status": {"phase": "Failed", "nodes": {"t": node}}}
    evidence = Evidence(pods=[failed], objects=[workflow], logs={"train.log": "MemoryError\n"})
    assert names(evidence) == ["out-of-memory"]


def test_the_same_trouble_of_many_pods_is_told_once_with_their_number() -> None:
    message = "0/1 nodes are available: 1 Too many pods."
    events = [event(f"sandbox-{number}", "FailedScheduling", message) for number in range(64)]
    (trouble,) = grouped(find_troubles(Evidence(events=events)))
    assert (trouble.name, trouble.where) == ("no-room-for-pods", "pod sandbox-0 and 63 more")


def test_a_log_of_an_agent_that_talks_about_errors_shows_none() -> None:
    log = "the agent said: I will fix the FileNotFoundError that users see\nDEBUG retrying, 0 refused\n"
    assert find_troubles(Evidence(logs={"train": log})) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("proxy: 64 sessions, 0 calls refused, 0 timed out", None),
        ("rollouts/proxy_refused:0.000", None),
        ("kube-proxy: 3 rules synced, none timed out", None),
        ("urllib3: ProxyError('Cannot connect to proxy.', NewConnectionError('refused'))", None),
        ("NVRM: Xid (PCI:0000:63:00): 13, Graphics Exception: ESR 0x404000=0x80000002", None),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", "gpu-fault"),
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', Double Bit ECC Error", "gpu-fault"),
    ],
)
def test_words_that_only_look_like_a_trouble_are_none(line: str, name: str | None) -> None:
    assert names(Evidence(logs={"train": line})) == ([] if name is None else [name])
