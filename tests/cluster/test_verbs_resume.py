"""A run goes on from a step in a new Workflow; stopping, cleaning up, and one at a time in a run's folder."""

import json
import re
import threading
from pathlib import Path

import pytest
from argo_rig import ArgoRig, until
from stand_in_workflow import plan, stand_in, trace

from testbed.access import ClusterAccess
from workflows.argo.nodes import nodes_of, phase_of
from workflows.submit import main
from workflows.verbs_logs import pods_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def volume_for(cluster: ClusterAccess, argo: ArgoRig, claim: str, folder: Path) -> None:
    """A claim of the namespace that is a folder of this machine."""
    name = f"{argo.namespace}-{claim}"
    room = {"storage": "1Gi"}
    folder.mkdir(parents=True, exist_ok=True)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": room,
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Delete",
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": argo.namespace, "name": claim},
        },
    }
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": room}}
    made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim}}
    made["metadata"] = {"name": claim, "namespace": argo.namespace}
    cluster.apply(volume, {**made, "spec": {**spec, "volumeName": name}})
    bound = "--for=jsonpath={.status.phase}=Bound"
    cluster.kubectl("wait", f"--namespace={argo.namespace}", bound, f"pvc/{claim}", "--timeout=60s")


@pytest.fixture
def claims(cluster: ClusterAccess, argo: ArgoRig, tmp_path: Path) -> None:
    """What submitting finds there already: the stand-ins' folder is the volume of runs."""
    for claim in ("verl-models", "verl-dataset"):
        volume_for(cluster, argo, claim, tmp_path / claim)
    volume_for(cluster, argo, "verl-runs", tmp_path)


@pytest.mark.usefixtures("claims")
def test_a_run_goes_on_from_a_step_after_its_exit_handler_has_swept(
    argo: ArgoRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argo.create(stand_in(tmp_path, argo.namespace, "again", start_from="train"))
    assert phase_of(argo.until_over("agentic-rl-again")) == "Succeeded"
    assert trace(tmp_path) == ["train", "evaluate", "report", "cleanup"]
    assert main(["resume", "again", "--from", "evaluate", "--watch", *argo.settings]) == 0
    said = capsys.readouterr().out
    assert f"workflow agentic-rl-again-attempt-2 is created in namespace {argo.namespace}" in said
    assert trace(tmp_path)[4:] == ["evaluate", "report", "cleanup"]
    second = argo.get("agentic-rl-again-attempt-2")
    assert second["metadata"]["labels"]["agentic-rl/run"] == "again"
    assert second["metadata"]["labels"]["agentic-rl/attempt"] == "2"
    assert [node.phase for node in nodes_of(second) if node.name == "train"] == ["Skipped"]
    assert main(["status", "again", *argo.settings]) == 0
    said = capsys.readouterr().out
    assert "workflow agentic-rl-again: Succeeded" in said
    assert "workflow agentic-rl-again-attempt-2: Succeeded" in said


def test_two_workflows_of_one_run_never_run_at_once(argo: ArgoRig, tmp_path: Path) -> None:
    """The second waits for the mutex of the run's folder and says so."""
    plan(tmp_path, "report", "wait")
    argo.create(stand_in(tmp_path, argo.namespace, "one", start_from="report"))
    until(lambda: trace(tmp_path) == ["report"])
    argo.create(stand_in(tmp_path, argo.namespace, "one", start_from="report", attempt=2))
    held = "Waiting for"
    until(lambda: held in str((argo.get("agentic-rl-one-attempt-2").get("status") or {}).get("message", "")))
    assert trace(tmp_path) == ["report"]
    (tmp_path / "go").touch()
    assert phase_of(argo.until_over("agentic-rl-one")) == "Succeeded"
    assert phase_of(argo.until_over("agentic-rl-one-attempt-2")) == "Succeeded"
    assert trace(tmp_path) == ["report", "cleanup", "report", "cleanup"]


def test_a_run_that_is_stopped_cleans_up_and_can_be_retried(
    argo: ArgoRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, "train", "wait")
    argo.create(stand_in(tmp_path, argo.namespace, "halted", start_from="launch-cluster"))
    until(lambda: "train" in trace(tmp_path))
    assert main(["stop", "halted", *argo.settings]) == 0
    stopped = argo.until_over("agentic-rl-halted")
    assert phase_of(stopped) == "Failed"
    assert trace(tmp_path)[-1] == "cleanup"
    assert not (tmp_path / "cluster").exists()
    assert main(["stop", "halted", *argo.settings]) == 0
    assert "run halted has ended already" in capsys.readouterr().out
    assert main(["retry", "halted", "--watch", *argo.settings]) == 0
    assert trace(tmp_path)[-4:] == ["train", "evaluate", "report", "cleanup"]


@pytest.mark.parametrize("verb", ["stop", "cleanup"])
def test_a_workflow_that_waits_for_another_of_its_run_never_begins_when_both_are_ended(
    argo: ArgoRig, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    plan(tmp_path, "report", "wait")
    first, second = "agentic-rl-both", "agentic-rl-both-attempt-2"
    argo.create(stand_in(tmp_path, argo.namespace, "both", start_from="report"))
    until(lambda: trace(tmp_path) == ["report"])
    argo.create(stand_in(tmp_path, argo.namespace, "both", start_from="report", attempt=2))
    until(lambda: "Waiting for" in str((argo.get(second).get("status") or {}).get("message", "")))
    assert main([verb, "both", *argo.settings]) == 0
    said = capsys.readouterr().out
    assert said.index(f"workflow {second} ") < said.index(f"workflow {first} ")
    if verb == "stop":
        assert {phase_of(argo.until_over(name)) for name in (first, second)} == {"Failed"}
    else:
        assert argo.names("both") == []
    assert trace(tmp_path).count("report") == 1


def test_a_log_is_followed_from_before_its_pod_is_there_until_the_step_ends(
    argo: ArgoRig, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    plan(tmp_path, "evaluate", "exit 75")
    plan(tmp_path, "report", "wait and fail")
    argo.create(stand_in(tmp_path, argo.namespace, "live", start_from="evaluate"))
    timer = threading.Timer(20, (tmp_path / "go").touch)
    timer.start()
    assert main(["logs", "live", "report", "--follow", *argo.settings]) == 0
    timer.join()
    said = capfdbinary.readouterr().out
    assert said.count(b"report of run live begins") == 2, "both attempts"
    assert b"report ends\n" in said, "to the end; behind it are words of Argo's executor"
    assert phase_of(argo.until_over("agentic-rl-live")) == "Succeeded"


@pytest.mark.usefixtures("claims")
def test_each_part_of_a_fan_out_is_printed_once_when_some_of_its_pods_are_gone(
    argo: ArgoRig, cluster: ClusterAccess, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    argo.create(stand_in(tmp_path, argo.namespace, "parts", shards=3))
    ended = argo.until_over("agentic-rl-parts")
    assert phase_of(ended) == "Succeeded"
    cluster.kubectl("delete", "pod", pods_of(ended, "build-images")["build-images-1"], f"--namespace={argo.namespace}")
    images = ["cluster.steps_image=agentic/base:local"]
    assert main(["logs", "parts", "build-images", *argo.settings, *images]) == 0
    said = capfdbinary.readouterr().out.decode()
    assert re.findall(r"build-images-\d of run parts begins", said) == [
        f"build-images-{index} of run parts begins" for index in (0, 2, 1)
    ]


def test_cleaning_up_ends_a_run_and_leaves_nothing_with_its_label(
    argo: ArgoRig, cluster: ClusterAccess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, "train", "wait")
    argo.create(stand_in(tmp_path, argo.namespace, "gone", start_from="train"))
    until(lambda: "train" in trace(tmp_path))
    left_over = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "left-over",
            "namespace": argo.namespace,
            "labels": {"app.kubernetes.io/part-of": "agentic-rl", "agentic-rl/run": "gone"},
        },
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(left_over))
    assert main(["cleanup", "gone", *argo.settings]) == 0
    said = capsys.readouterr().out
    assert "removed     ConfigMap left-over" in said
    assert "removed     Workflow agentic-rl-gone" in said
    kinds = "workflows,pods,configmaps,jobs,services"
    selected = (f"--namespace={argo.namespace}", "--selector=agentic-rl/run=gone", "-o", "name")
    until(lambda: not cluster.kubectl("get", kinds, *selected).strip())
    assert main(["cleanup", "gone", *argo.settings]) == 0


@pytest.mark.usefixtures("claims")
def test_a_steps_log_is_read_from_its_pod_and_from_the_volume_when_that_is_gone(
    argo: ArgoRig, cluster: ClusterAccess, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    argo.create(stand_in(tmp_path, argo.namespace, "said", start_from="report"))
    assert phase_of(argo.until_over("agentic-rl-said")) == "Succeeded"
    images = ["cluster.steps_image=agentic/base:local"]
    assert main(["logs", "said", "report", *argo.settings, *images]) == 0
    assert b"report of run said begins\nreport ends\n" in capfdbinary.readouterr().out
    cluster.kubectl("delete", "pods", "--all", f"--namespace={argo.namespace}", "--wait=true")
    (tmp_path / "runs/said/report.html").write_text("<html>it went well</html>")
    cluster.kubectl("delete", "workflow", "agentic-rl-said", f"--namespace={argo.namespace}")
    assert main(["logs", "said", "report", *argo.settings, *images]) == 0
    assert capfdbinary.readouterr().out == b"report of run said begins\nreport ends\n"
    assert main(["report", "said", *argo.settings, *images]) == 0
    assert capfdbinary.readouterr().out == b"<html>it went well</html>"
    assert main(["logs", "said", "train", *argo.settings, *images]) == 78
    assert b"run said has no such file (claim verl-runs, folder runs/said" in capfdbinary.readouterr().err
    pods = cluster.get("pods", f"--namespace={argo.namespace}", "--selector=agentic-rl/run=said")["items"]
    assert pods == []
