"""Failed steps run again, by us as by the argo command, after the exit handler has taken the RayCluster away."""

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from argo_rig import ArgoRig, until
from stand_in_workflow import plan, stand_in, trace

from testbed.access import ClusterAccess
from testbed.tools import Toolbox
from workflows.argo.nodes import argo_nodes, nodes_of, phase_of
from workflows.argo.retrying import pod_name, restart
from workflows.errors import CommandError
from workflows.submit import main

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

HELD_SECONDS = 20.0
"""Until the controller has nothing more to do about a pod that it takes to be there."""
NOBODY = "nobody"
"""Instance of a controller that does not exist: what carries it is left alone."""


def test_a_run_that_failed_for_good_goes_on_where_it_failed(
    argo: ArgoRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, "train", "exit 78")
    argo.create(stand_in(tmp_path, argo.namespace, "first", start_from="launch-cluster"))
    failed = argo.until_over("agentic-rl-first")
    assert phase_of(failed) == "Failed"
    assert trace(tmp_path) == ["launch-cluster", "train", "cleanup"]
    assert not (tmp_path / "cluster").exists()
    train = next(node for node in nodes_of(failed) if node.name == "train")
    assert (train.phase, train.attempt, train.exit_code) == ("Failed", 1, 78)
    assert "train was told to leave with exit 78" in train.message
    assert main(["retry", "first", "--watch", *argo.settings]) == 0
    said = capsys.readouterr().out
    assert "goes on with train" in said
    assert trace(tmp_path)[3:] == ["train", "evaluate", "report", "cleanup"]
    assert "train makes the cluster anew" in (tmp_path / "runs/first/logs/train.log").read_text()
    assert main(["retry", "first", *argo.settings]) == 78
    assert "agentic-rl-first is Succeeded: only failed steps are retried" in capsys.readouterr().err


def test_a_fan_out_with_one_failure_is_restarted_as_the_argo_command_does_it(
    argo: ArgoRig, cluster: ClusterAccess, tmp_path: Path
) -> None:
    """The same finished object is restarted by both, where no controller touches the result."""
    plan(tmp_path, "build-images-1", "exit 75", "exit 78")
    argo.create(stand_in(tmp_path, argo.namespace, "fan"))
    failed = argo.until_over("agentic-rl-fan")
    assert phase_of(failed) == "Failed"
    assert trace(tmp_path).count("build-images-1") == 2
    ours = restart(failed, datetime.now(UTC))
    pods = {item["metadata"]["name"] for item in cluster.get("pods", f"--namespace={argo.namespace}")["items"]}
    assert set(ours.pods) <= pods
    theirs = _restarted_by_argo(cluster, argo, failed)
    left, expected = argo_nodes(ours.workflow), argo_nodes(theirs)
    assert left.keys() == expected.keys()
    for key, node in left.items():
        assert (node["type"], node["phase"]) == (expected[key]["type"], expected[key]["phase"]), node["name"]
        for links in ("children", "outboundNodes"):
            assert (node.get(links) or []) == (expected[key].get(links) or []), node["name"]
    assert "workflows.argoproj.io/completed" not in ours.workflow["metadata"]["labels"]
    assert "workflows.argoproj.io/completed" not in theirs["metadata"]["labels"]
    asyncio.run(argo.retry("agentic-rl-fan"))
    again = argo.until_over("agentic-rl-fan")
    assert phase_of(again) == "Succeeded"
    assert trace(tmp_path).count("build-images-0") == 1
    assert trace(tmp_path).count("build-images-1") == 3


def test_of_two_retries_at_once_one_does_it_and_the_other_says_that_it_goes_on(argo: ArgoRig, tmp_path: Path) -> None:
    plan(tmp_path, "report", "exit 78", "wait")
    argo.create(stand_in(tmp_path, argo.namespace, "twice", start_from="report"))
    assert phase_of(argo.until_over("agentic-rl-twice")) == "Failed"

    async def both() -> list[BaseException | None]:
        return await asyncio.gather(*(argo.retry("agentic-rl-twice") for _ in range(2)), return_exceptions=True)

    ended = asyncio.run(both())
    assert None in ended, ended
    assert all(isinstance(error, CommandError) for error in ended if error is not None), ended
    (tmp_path / "go").touch()
    again = argo.until_over("agentic-rl-twice")
    assert phase_of(again) == "Succeeded"
    assert next(node.attempt for node in nodes_of(again) if node.name == "report") == 1, "no pod of it was removed"


def _restarted_by_argo(cluster: ClusterAccess, argo: ArgoRig, workflow: dict[str, Any]) -> dict[str, Any]:
    copied = {key: workflow[key] for key in ("apiVersion", "kind", "spec", "status")}
    labels = {**workflow["metadata"]["labels"], "workflows.argoproj.io/controller-instanceid": NOBODY}
    aside = f"{argo.namespace}-aside"
    cluster.kubectl("create", "namespace", aside)
    try:
        name = workflow["metadata"]["name"]
        copied["metadata"] = {"name": name, "namespace": aside, "labels": labels}
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(copied))
        argo_command(cluster, "retry", name, f"--namespace={aside}", f"--instanceid={NOBODY}")
        return cluster.get("workflow", name, f"--namespace={aside}")
    finally:
        cluster.kubectl("delete", "namespace", aside, "--wait=false")


def argo_command(cluster: ClusterAccess, *arguments: str) -> str:
    """The argo command, straight to the API server."""
    command = [str(Toolbox(cluster.layout).path("argo")), *arguments, f"--kubeconfig={cluster.kubeconfig}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_argos_own_retry_does_the_expected(argo: ArgoRig, cluster: ClusterAccess, tmp_path: Path) -> None:
    plan(tmp_path, "train", "exit 78")
    argo.create(stand_in(tmp_path, argo.namespace, "theirs", start_from="launch-cluster"))
    assert phase_of(argo.until_over("agentic-rl-theirs")) == "Failed"
    argo_command(cluster, "retry", "agentic-rl-theirs", f"--namespace={argo.namespace}")
    assert phase_of(argo.until_over("agentic-rl-theirs")) == "Succeeded"
    assert trace(tmp_path)[3:] == ["train", "evaluate", "report", "cleanup"]


def test_a_workflow_whose_pod_argos_retry_did_not_wait_for_is_named_and_woken(
    argo: ArgoRig, cluster: ClusterAccess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Argo deletes the failed pod and does not wait until it is gone: held here until the controller has taken it for
    the new one, as happens by itself where a node is slow."""
    plan(tmp_path, "report", "exit 78")
    argo.create(stand_in(tmp_path, argo.namespace, "held", start_from="report"))
    failed = argo.until_over("agentic-rl-held")
    pod = pod_name(failed, attempt_of_report(failed))
    where = f"--namespace={argo.namespace}"
    cluster.kubectl("patch", "pod", pod, where, "--type=merge", "-p", '{"metadata": {"finalizers": ["test/held"]}}')
    argo_command(cluster, "retry", "agentic-rl-held", where)
    until(lambda: attempt_of_report(argo.get("agentic-rl-held")).get("phase") == "Pending")
    time.sleep(HELD_SECONDS)
    cluster.kubectl("patch", "pod", pod, where, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')

    def explained() -> str:
        main(["explain", "held", *argo.settings])
        said = capsys.readouterr().out
        return said if "for a pod that is not there" in said else ""

    (command,) = re.findall(r"kubectl (annotate .*)", until(explained))
    assert trace(tmp_path) == ["report", "cleanup"]
    cluster.kubectl(*command.split())
    assert phase_of(argo.until_over("agentic-rl-held")) == "Succeeded"
    assert trace(tmp_path) == ["report", "cleanup", "report", "cleanup"]


def attempt_of_report(workflow: dict[str, Any]) -> Mapping[str, Any]:
    """Nothing while there is none."""
    found = [node for node in argo_nodes(workflow).values() if node["name"].endswith(".report(0)")]
    return found[0] if found else {}


def test_a_memoized_resubmission_does_only_what_failed(argo: ArgoRig, cluster: ClusterAccess, tmp_path: Path) -> None:
    """Of a Workflow that began at the first step: one that skipped some itself never ends, see docs/pipeline.md."""
    plan(tmp_path, "evaluate", "exit 78")
    argo.create(stand_in(tmp_path, argo.namespace, "memo"))
    assert phase_of(argo.until_over("agentic-rl-memo")) == "Failed"
    before = len(trace(tmp_path))
    argo_command(cluster, "resubmit", "--memoized", "agentic-rl-memo", f"--namespace={argo.namespace}")
    (name,) = [name for name in argo.names("memo") if name != "agentic-rl-memo"]
    again = argo.until_over(name)
    assert phase_of(again) == "Succeeded"
    pods = {node["name"]: node["phase"] for node in argo_nodes(again).values() if node["type"] == "Pod"}
    assert {phase for pod, phase in pods.items() if f"{name}.train" in pod} <= {"Skipped"}
    assert {phase for pod, phase in pods.items() if f"{name}.evaluate" in pod} == {"Succeeded"}
    assert trace(tmp_path)[before:] == ["evaluate", "report", "cleanup"]


@pytest.mark.parametrize(
    ("actions", "phase", "attempts"),
    [
        (("exit 75",), "Succeeded", 2),
        (("exit 78",), "Failed", 1),
        (("oom",), "Succeeded", 2),
        (("oom", "oom"), "Failed", 2),
        (("exit 75", "oom"), "Failed", 2),
        (("exit 143", "exit 64"), "Succeeded", 3),
    ],
    ids=lambda value: " ".join(value).replace(" ", "-") if isinstance(value, tuple) else "",
)
def test_what_may_pass_is_tried_again_and_what_cannot_is_not(
    argo: ArgoRig, tmp_path: Path, actions: tuple[str, ...], phase: str, attempts: int
) -> None:
    """A container over its own memory gets one more try; after another failure it gets none."""
    plan(tmp_path, "report", *actions)
    argo.create(stand_in(tmp_path, argo.namespace, "once", start_from="report"))
    ended = argo.until_over("agentic-rl-once")
    assert phase_of(ended) == phase
    report = next(node for node in nodes_of(ended) if node.name == "report")
    assert (report.phase, report.attempt) == (phase, attempts)
    assert trace(tmp_path).count("report") == attempts


def test_a_pod_that_is_deleted_is_tried_again(argo: ArgoRig, cluster: ClusterAccess, tmp_path: Path) -> None:
    plan(tmp_path, "report", "wait")
    argo.create(stand_in(tmp_path, argo.namespace, "lost", start_from="report"))
    until(lambda: trace(tmp_path) == ["report"])
    workflow = until(lambda: _running(argo.get("agentic-rl-lost")))
    (pod,) = [pod_name(workflow, node) for node in argo_nodes(workflow).values() if node["type"] == "Pod"]
    cluster.kubectl("delete", "pod", pod, f"--namespace={argo.namespace}", "--grace-period=0", "--force")
    ended = argo.until_over("agentic-rl-lost")
    assert phase_of(ended) == "Succeeded"
    assert next(node for node in nodes_of(ended) if node.name == "report").attempt == 2


def _running(workflow: dict[str, Any]) -> dict[str, Any] | None:
    """Once the Workflow knows that the pod runs: until then, Argo makes a deleted one again without a word."""
    phases = [node["phase"] for node in argo_nodes(workflow).values() if node["type"] == "Pod"]
    return workflow if phases == ["Running"] else None
