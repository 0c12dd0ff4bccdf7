"""The verbs about a cluster, against an API server in memory: what they make, print and refuse."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from argo_documents import ArgoWorkflow, failed_fan_out
from kube_api import Fault, KubeApiServer
from kube_store import Change, Refusal
from kube_thread import kube_on_a_thread, write_kubeconfig

from agentic.cluster.resources import CLAIMS, STORAGE_CLASSES, JsonObject
from steps.build_images import NAMED_AT_MOST
from workflows.argo.packing import LARGEST_BYTES, size_of
from workflows.argo.retrying import pod_name
from workflows.argo.server import ServerAddress
from workflows.pipeline import build_workflow
from workflows.settings import load_settings
from workflows.submit import main
from workflows.verbs_logs import pods_of

WORKFLOWS = "workflows.argoproj.io"
FIRST = (WORKFLOWS, "default", "agentic-rl-first")


class Ended(NamedTuple):
    """How the command ended."""

    code: int
    out: str
    err: str


type Command = Callable[..., Ended]


@pytest.fixture
def server() -> Iterator[KubeApiServer]:
    """A cluster whose storage binds claims at once."""
    with kube_on_a_thread() as server:
        server.store.admit.append(_bind)
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        nas = STORAGE_CLASSES.head("nas", annotations=default) | {"provisioner": "nasplugin.csi.alibabacloud.com"}
        server.store.objects[(STORAGE_CLASSES.name, "", "nas")] = _stored(nas)
        yield server


def _bind(verb: str, kind: str, body: JsonObject) -> JsonObject:
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "50Gi"}}}
    return {**body, **bound} if verb == "create" and kind == CLAIMS.plural else body


def _stored(body: JsonObject) -> JsonObject:
    kept = {
        "uid": f"uid-{body['metadata']['name']}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T10:00:00Z",
    }
    return {**body, "metadata": {**kept, **body["metadata"]}}


@pytest.fixture
def run(
    server: KubeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server.address)))
    monkeypatch.setenv("AGENTIC_WORKSPACE", str(tmp_path / "workspace"))
    for name in ("ARGO_SERVER", "ARGO_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def act(*arguments: str) -> Ended:
        try:
            code = main(arguments)
        except SystemExit as error:
            code = int(error.code or 0)
        return Ended(code, *capsys.readouterr())

    return act


def has_failed(server: KubeApiServer) -> JsonObject:
    """A run `first` whose fan-out failed, as Argo leaves it."""
    document = build_workflow(load_settings("demo", [], {}), "demo", "first")
    body = _stored(failed_fan_out(document).body)
    body["metadata"]["namespace"] = "default"
    server.store.objects[FIRST] = body
    return body


def test_submit_makes_what_runs_share_and_then_what_render_prints(run: Command, server: KubeApiServer) -> None:
    ended = run("--profile", "demo", "--run-id", "first")
    assert ended.code == 0, ended.err
    assert "workflow agentic-rl-first is created in namespace default: " in ended.out
    assert "to watch it: python3 workflows/submit.py watch first" in ended.out
    made = server.store.objects[FIRST]
    rendered = yaml.safe_load(run("render", "--profile", "demo", "--run-id", "first").out)
    assert {"spec": made["spec"], "labels": made["metadata"]["labels"]} == {
        "spec": rendered["spec"],
        "labels": rendered["metadata"]["labels"],
    }
    claims = {key[2] for key in server.store.objects if key[0] == CLAIMS.plural}
    assert claims == {"verl-models", "verl-dataset", "verl-runs"}
    posted = [request for request in server.requests if request.startswith(("POST", "PATCH"))]
    assert posted[-1].startswith("POST /apis/argoproj.io"), "the Workflow comes last"
    again = run("--profile", "demo", "--run-id", "first")
    assert again.code == 78
    assert again.err.startswith("workflow agentic-rl-first exists: take another --run-id")
    assert again.err.count("\n") == 1


def test_the_commands_that_are_named_find_the_run_where_it_is(run: Command, server: KubeApiServer) -> None:
    """They carry namespace, server and target; typed as they stand, they are about the same run."""
    ended = run(
        "--profile", "demo", "--run-id", "first", "cluster.namespace=rl", "cluster.argo_ui=https://argo.example"
    )
    *_, last = ended.out.splitlines()
    assert last == (
        "to watch it: python3 workflows/submit.py watch first cluster.namespace=rl cluster.argo_ui=https://argo.example"
    )
    ended = run("stop", "first", "--target", "argo", "cluster.namespace=rl")
    assert ended.out.endswith("python3 workflows/submit.py retry first --target argo cluster.namespace=rl\n")
    words = ended.out.partition("submit.py ")[2].split()
    assert run(*words).err.startswith("agentic-rl-first is Pending: only failed steps are retried; to do some again: ")


def test_a_context_with_another_namespace_is_pointed_out(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubeconfig"
    config = yaml.safe_load(path.read_text())
    config["contexts"][0]["context"]["namespace"] = "rl"
    path.write_text(yaml.safe_dump(config))
    first, *_ = run("--profile", "demo", "--run-id", "first").out.splitlines()
    assert first == "namespace default, as cluster.namespace says; kubectl's context is about rl"
    assert "context" not in run("--profile", "demo", "--run-id", "second", "cluster.namespace=rl").out


def test_a_cluster_without_argo_says_so(run: Command, server: KubeApiServer) -> None:
    missing = "the server could not find the requested resource"
    server.faults.append(Fault(path="argoproj", status=404, times=9, message=missing))
    ended = run("--profile", "demo", "--run-id", "first")
    assert (ended.code, ended.err.count("\n")) == (78, 1)
    assert ended.err.startswith("the cluster has no Argo Workflows")
    assert not [request for request in server.requests if request.startswith(("POST", "PATCH"))]


def test_a_cluster_that_refuses_says_what_is_missing(run: Command, server: KubeApiServer) -> None:
    def refuse(verb: str, kind: str, body: JsonObject) -> JsonObject:
        if kind == WORKFLOWS:
            who = 'User "ann" cannot create resource "workflows" in API group "argoproj.io"'
            raise Refusal(403, "Forbidden", f"workflows is forbidden: {who}")
        return body

    server.store.admit.append(refuse)
    ended = run("--profile", "demo", "--run-id", "first")
    assert (ended.code, ended.err.count("\n")) == (78, 1)
    assert ended.err.startswith("the cluster refuses to create a Workflow in default: ")
    assert "ann may not create workflows" in ended.err


def test_a_cluster_that_does_not_answer_is_one_line_that_names_local(run: Command, server: KubeApiServer) -> None:
    server.faults.append(Fault(status=503, times=1000, message="restarting"))
    ended = run("--profile", "demo", "--run-id", "first")
    assert (ended.code, ended.err.count("\n")) == (75, 1)
    assert ended.err.startswith("no Kubernetes cluster can be reached")
    assert "503: restarting" in ended.err
    assert "python3 workflows/submit.py local" in ended.err


def test_wrong_storage_is_refused_before_anything_is_made(run: Command, server: KubeApiServer) -> None:
    ended = run("--profile", "demo", "cluster.runs.kind=block", "cluster.runs.storage_class=none")
    assert ended.code == 78
    assert ended.err.count("\n") == 1
    assert not [request for request in server.requests if request.startswith(("POST", "PATCH"))]


def test_plan_says_what_the_cluster_has(run: Command, server: KubeApiServer) -> None:
    has_failed(server)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}
    server.store.objects[("nodes", "", "gpu-1")] = _stored(node | {"status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    ended = run("plan", "--run-id", "first")
    assert ended.code == 0, ended.err
    for line in (
        r"^gpus        8: the head has 8, with 50 CPUs and 200Gi; no workers$",
        r"^images      agentic-rl/steps:0\.1\.0 for light steps, agentic-rl/trainer:0\.1\.0 for the others and ",
        r"^nodes       1, 1 of them with GPUs: 8 in all, 8 at most in one$",
        r"^claim       verl-models: to be made, 50Gi, ReadWriteMany$",
        r"^account     rayclustertest: to be made$",
        r"^workflows   agentic-rl-first Failed$",
    ):
        assert re.search(line, ended.out, re.MULTILINE), line
    assert not [request for request in server.requests if not request.startswith("GET")]


def test_status_names_steps_as_the_local_run_does(run: Command, server: KubeApiServer) -> None:
    has_failed(server)
    ended = run("status", "first")
    assert ended.code == 0, ended.err
    assert re.search(r"^build-images-1 +Failed +attempt 2 2:05 main: Error \(exit code 78\)$", ended.out, re.MULTILINE)
    assert re.search(r"^train +Omitted", ended.out, re.MULTILINE)
    assert "workflow agentic-rl-first: Failed, child failed" in ended.out
    assert "/workflows/default/agentic-rl-first" in ended.out


def test_watching_a_run_that_has_failed_ends_with_what_to_do(run: Command, server: KubeApiServer) -> None:
    has_failed(server)
    ended = run("watch", "first", "cluster.argo_ui=https://argo.example/ui/")
    assert ended.code == 78
    assert "https://argo.example/ui/workflows/default/agentic-rl-first" in ended.out
    assert "run first Failed: child failed" in ended.out
    assert "submit.py explain first" in ended.out


def test_resuming_makes_a_second_workflow_of_the_run(run: Command, server: KubeApiServer) -> None:
    has_failed(server)
    ended = run("resume", "first", "--from", "train", "train.steps=12")
    assert ended.code == 0, ended.err
    second = server.store.objects[(WORKFLOWS, "default", "agentic-rl-first-attempt-2")]
    parameters = {one["name"]: one["value"] for one in second["spec"]["arguments"]["parameters"]}
    assert (parameters["run_id"], parameters["start_from"]) == ("first", "train")
    assert json.loads(parameters["train"])["steps"] == 12
    assert second["metadata"]["labels"]["agentic-rl/run"] == "first"
    running = run("resume", "first", "--from", "train")
    assert running.code == 78
    assert running.err.startswith("agentic-rl-first-attempt-2 is still going on")


def test_stopping_ends_only_what_runs(run: Command, server: KubeApiServer) -> None:
    has_failed(server)
    assert "run first has ended already" in run("stop", "first").out
    run("resume", "first", "--from", "train")
    assert "agentic-rl-first-attempt-2 ends its steps" in run("stop", "first").out
    assert server.store.objects[(WORKFLOWS, "default", "agentic-rl-first-attempt-2")]["spec"]["shutdown"] == "Stop"


def test_cleaning_up_removes_all_of_the_run_and_nothing_else(run: Command, server: KubeApiServer) -> None:
    has_failed(server)
    for run_id in ("first", "second"):
        head = {"name": f"box-{run_id}", "namespace": "default", "labels": {"agentic-rl/run": run_id}}
        server.store.objects[("configmaps", "default", f"box-{run_id}")] = _stored({"metadata": head})
    ended = run("cleanup", "first")
    assert ended.code == 0, ended.err
    assert "removed     ConfigMap box-first" in ended.out
    assert "removed     Workflow agentic-rl-first" in ended.out
    assert ("configmaps", "default", "box-second") in server.store.objects
    assert ("configmaps", "default", "box-first") not in server.store.objects
    assert run("cleanup", "first").code == 0


def test_a_retry_is_worked_out_again_when_somebody_changes_the_workflow_meanwhile(
    run: Command, server: KubeApiServer
) -> None:
    """Its pods are removed first, which takes a while; a label that comes meanwhile stays."""
    body = has_failed(server)
    (pod,) = pods_of(body, "build-images-1").values()
    labels = {"workflows.argoproj.io/workflow": "agentic-rl-first"}
    made = {"kind": "Pod", "metadata": {"name": pod, "namespace": "default", "labels": labels}, "status": {}}
    server.store.objects[("pods", "default", pod)] = _stored(made)

    def meddle(change: Change) -> None:
        if change.kind == "DELETED" and change.key[0] == "pods":
            found = server.store.objects[FIRST]
            metadata = {**found["metadata"], "labels": {**found["metadata"]["labels"], "seen": "by-somebody"}}
            server.store.replace(FIRST, {**found, "metadata": metadata})

    server.store.observers.append(meddle)
    ended = run("retry", "first")
    assert ended.code == 0, ended.err
    after = server.store.objects[FIRST]
    assert after["status"]["phase"] == ""
    assert after["metadata"]["labels"]["seen"] == "by-somebody"
    assert "workflows.argoproj.io/completed" not in after["metadata"]["labels"]
    assert len([request for request in server.requests if request.startswith("PATCH")]) == 4, "claimed and done, twice"
    again = run("retry", "first")
    assert (again.code, again.err.count("\n")) == (78, 1)
    assert again.err.startswith("agentic-rl-first is Pending: only failed steps are retried")


def test_a_retry_that_comes_too_late_removes_no_pod_of_a_new_attempt(run: Command, server: KubeApiServer) -> None:
    """New attempts have pods of the old names: they come between what the late one reads and what it does."""
    body = has_failed(server)
    (pod,) = pods_of(body, "build-images-1").values()
    late = [True]

    def win(verb: str, kind: str, changed: JsonObject) -> JsonObject:
        if kind == WORKFLOWS and late and late.pop():
            status = {**body["status"], "phase": "Running"}
            server.store.replace(FIRST, {**body, "status": status})
            made = {"kind": "Pod", "metadata": {"name": pod, "namespace": "default"}, "status": {"phase": "Running"}}
            server.store.objects[("pods", "default", pod)] = _stored(made)
            raise Refusal(409, "Conflict", "the object has been modified")
        return changed

    server.store.admit.append(win)
    ended = run("retry", "first")
    assert (ended.code, ended.err.count("\n")) == (78, 1)
    assert ended.err.startswith("agentic-rl-first is Running: only what failed is retried")
    assert ("pods", "default", pod) in server.store.objects


def two_workflows(server: KubeApiServer) -> list[str]:
    """A run whose second Workflow waits until the first has ended; the server ends what is told to end."""
    document = build_workflow(load_settings("demo", [], {}), "demo", "first")
    names = ["agentic-rl-first", "agentic-rl-first-attempt-2"]
    for index, name in enumerate(names):
        body = _stored({**document, "metadata": {**document["metadata"], "name": name, "namespace": "default"}})
        body["metadata"]["creationTimestamp"] = f"2026-01-01T10:00:0{index}Z"
        server.store.objects[(WORKFLOWS, "default", name)] = {**body, "status": {"phase": "Running"}}

    def end(verb: str, kind: str, body: JsonObject) -> JsonObject:
        if kind == WORKFLOWS and body["spec"].get("shutdown") == "Stop":
            labels = {**body["metadata"]["labels"], "workflows.argoproj.io/completed": "true"}
            return {**body, "metadata": {**body["metadata"], "labels": labels}, "status": {"phase": "Failed"}}
        return body

    server.store.admit.append(end)
    return names


@pytest.mark.parametrize("verb", ["stop", "cleanup"])
def test_of_two_workflows_the_waiting_one_is_told_first_so_that_it_never_begins(
    run: Command, server: KubeApiServer, verb: str
) -> None:
    """It waits for the mutex of the run's folder, which it gets when the other ends."""
    first, second = two_workflows(server)
    ended = run(verb, "first")
    assert ended.code == 0, ended.err
    asked = [request.rpartition("/")[2] for request in server.requests if request.startswith("PATCH")]
    assert asked == [second, first]
    assert ended.out.index(f"workflow {second} ") < ended.out.index(f"workflow {first} ")


def reads_the_volume(server: KubeApiServer) -> None:
    """Pods that read the volume end at once and have printed which files they were asked for."""
    server.pods.starts_pods = False

    def end(verb: str, kind: str, body: JsonObject) -> JsonObject:
        if verb != "create" or kind != "pods":
            return body
        *_, root, pattern = [word for word in body["spec"]["containers"][0]["command"] if "-[0-9]" not in word]
        server.logs[body["metadata"]["name"]] = f"{root}/{pattern} of the volume\n".encode()
        ended = [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]
        return {**body, "status": {"phase": "Succeeded", "containerStatuses": ended}}

    server.store.admit.append(end)


def pods_of_shards(body: JsonObject) -> list[str]:
    return list(pods_of(body, "build-images").values())


def test_the_log_of_each_part_is_printed_once_from_its_pod_or_from_the_volume(
    run: Command, server: KubeApiServer
) -> None:
    """Argo removes the pods of parts that have succeeded; those of others are still there."""
    first, second = pods_of_shards(has_failed(server))
    server.logs[second] = b"the second\n"
    reads_the_volume(server)
    assert run("logs", "first", "build-images").out == (
        "the second\n/workspace/runs/first/logs/build-images-0.log of the volume\n"
    )
    server.logs[first] = b"the first\n"
    assert run("logs", "first", "build-images").out == "the first\nthe second\n"
    assert run("logs", "first", "build-images-1").out == "the second\n"
    assert not [key for key in server.store.objects if key[0] == "pods"], "none of those that read is left"


def test_a_pod_that_has_not_begun_is_said_and_waited_for_when_it_is_followed(
    run: Command, server: KubeApiServer
) -> None:
    body = has_failed(server)
    (pod,) = pods_of(body, "build-images-1").values()
    server.logs[pod] = Refusal(400, "BadRequest", 'container "main" in pod is waiting to start: ContainerCreating')
    ended = run("logs", "first", "build-images-1")
    assert (ended.code, ended.err.count("\n")) == (75, 1)
    assert ended.err.startswith(f"pod {pod} has not begun: ")
    del body["metadata"]["labels"]["workflows.argoproj.io/completed"]
    timer = threading.Timer(1.5, lambda: server.logs.update({pod: b"begun\n"}))
    timer.start()
    assert run("logs", "first", "build-images-1", "--follow").out == "begun\n"
    timer.join()


@pytest.mark.parametrize(
    ("code", "exit_code", "line"),
    [(66, 78, "run first has no such file"), (127, 75, "the pod that reads claim verl-runs, folder runs/first")],
)
def test_a_file_that_is_missing_is_told_from_a_reader_that_failed(
    run: Command, server: KubeApiServer, code: int, exit_code: int, line: str
) -> None:
    reads_the_volume(server)

    def fail(verb: str, kind: str, body: JsonObject) -> JsonObject:
        if verb == "create" and kind == "pods":
            body["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] = code
        return body

    server.store.admit.append(fail)
    ended = run("report", "first")
    assert (ended.code, ended.err.count("\n")) == (exit_code, 1)
    assert ended.err.startswith(line)


def holds_pods(server: KubeApiServer) -> None:
    """Their image cannot be pulled."""
    server.pods.starts_pods = False

    def hold(verb: str, kind: str, body: JsonObject) -> JsonObject:
        state = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
        status = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": state}]}
        return {**body, "status": status} if verb == "create" and kind == "pods" else body

    server.store.admit.append(hold)


def test_explain_tries_once_to_read_a_volume_that_no_pod_can_read(run: Command, server: KubeApiServer) -> None:
    """Two steps have failed, and training is one of them, so that logs and records are asked for."""
    body = has_failed(server)
    nodes = body["status"]["nodes"]
    nodes["agentic-rl-first.train"] |= {"type": "Retry", "phase": "Failed", "message": "main: Error (exit code 78)"}
    claim = CLAIMS.head("verl-runs") | {"status": {"phase": "Bound"}}
    server.store.objects[(CLAIMS.plural, "default", "verl-runs")] = _stored(claim)
    pod = {"kind": "Pod", "metadata": {"name": "x", "namespace": "default", "labels": {"agentic-rl/run": "first"}}}
    server.store.objects[("pods", "default", "x")] = _stored(pod)
    holds_pods(server)
    ended = run("explain", "first")
    assert (ended.code, ended.err) == (78, "")
    assert "train: Error (exit code 78)" in ended.out
    assert "python3 workflows/submit.py logs first STEP" in ended.out
    assert len([request for request in server.requests if request.startswith("POST")]) == 1


def test_a_reader_whose_image_cannot_be_pulled_is_not_waited_for(run: Command, server: KubeApiServer) -> None:
    """As after a run that failed for that very reason."""
    holds_pods(server)
    began = time.monotonic()
    ended = run("report", "first")
    assert (ended.code, ended.err.count("\n")) == (75, 1)
    assert ended.err.endswith("cannot start: ImagePullBackOff: Back-off pulling image\n")
    assert time.monotonic() - began < 30
    assert not [key for key in server.store.objects if key[0] == "pods"]


def test_explain_is_about_the_newest_workflow_and_not_about_what_was_overcome(
    run: Command, server: KubeApiServer
) -> None:
    """Of the failed Workflow a step had failed once and then succeeded; a later Workflow succeeded as a whole."""
    body = has_failed(server)
    (pod,) = pods_of(body, "build-images-1").values()
    overcome = pod_name(body, body["status"]["nodes"]["agentic-rl-first.download-data(0)"])
    for name in (pod, overcome):
        labels = {"agentic-rl/run": "first", "workflows.argoproj.io/workflow": "agentic-rl-first"}
        state = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        status = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]}
        made = {"kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": labels}, "status": status}
        server.store.objects[("pods", "default", name)] = _stored(made | {"spec": {"nodeName": "node-1"}})
    waited = {"reason": "FailedScheduling", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    event = {
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": pod},
        **waited,
    }
    server.store.objects[("events", "default", "e")] = _stored(event)
    nodes = body["status"]["nodes"]
    nodes["agentic-rl-first.build-images(1:1/2)(1)"]["startedAt"] = "2026-01-01T11:00:00Z"
    for attempt in (0, 1):
        nodes[f"agentic-rl-first.build-images(1:1/2)({attempt})"]["displayName"] = f"build-images(1:1/2)({attempt})"
    ended = run("explain", "first")
    assert pod in ended.out
    assert overcome not in ended.out
    assert "step build-images: Error (exit code 78)" in ended.out, "the last attempt's reason"
    assert "Insufficient" not in ended.out, "it got a node after all"
    second = _stored({**body, "metadata": {**body["metadata"], "name": "agentic-rl-first-attempt-2"}})
    second["metadata"]["creationTimestamp"] = "2026-01-02T10:00:00Z"
    second["status"] = {"phase": "Succeeded", "nodes": {}}
    server.store.objects[(WORKFLOWS, "default", "agentic-rl-first-attempt-2")] = second
    ended = run("explain", "first")
    assert (ended.code, ended.out) == (0, "run first shows no trouble that has a name\n")


def test_recorded_settings_that_somebody_gave_anew_and_wrongly_are_one_line(
    run: Command, server: KubeApiServer
) -> None:
    """As `argo resubmit -p train=4` leaves them."""
    body = has_failed(server)
    parameters = body["spec"]["arguments"]["parameters"]
    next(one for one in parameters if one["name"] == "train")["value"] = "{"
    ended = run("resume", "first", "--from", "train")
    assert (ended.code, ended.err.count("\n")) == (78, 1)
    assert ended.err.startswith("parameter train of workflow agentic-rl-first is not JSON")


def test_a_namespace_that_is_not_there_is_named_with_the_command_that_makes_it(
    run: Command, server: KubeApiServer
) -> None:
    def refuse(verb: str, kind: str, body: JsonObject) -> JsonObject:
        raise Refusal(404, "NotFound", 'namespaces "rl" not found')

    server.store.admit.append(refuse)
    ended = run("--profile", "demo", "cluster.namespace=rl")
    assert (ended.code, ended.err.count("\n")) == (78, 1)
    assert 'namespaces "rl" not found: make it (kubectl create namespace rl)' in ended.err


def test_cleaning_up_finds_sandboxes_in_a_namespace_of_their_own(run: Command, server: KubeApiServer) -> None:
    changes = ["sandbox.provider=pod", "sandbox.namespace=boxes"]
    document = build_workflow(load_settings("demo", changes, {}), "demo", "first")
    body = _stored(ArgoWorkflow("agentic-rl-first", document).body)
    body["metadata"]["namespace"] = "default"
    server.store.objects[FIRST] = body
    for namespace in ("boxes", "others"):
        head = {"name": "box", "namespace": namespace, "labels": {"agentic-rl/run": "first"}}
        server.store.objects[("pods", namespace, "box")] = _stored({"metadata": head})
    ended = run("cleanup", "first")
    assert ended.code == 0, ended.err
    assert "removed     Pod box" in ended.out
    assert [key[1] for key in server.store.objects if key[0] == "pods"] == ["others"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["watch"], "name a run: python3 workflows/submit.py watch RUN"),
        (["watch", "first", "train"], "'train' is no setting"),
        (["watch", "second"], "the cluster has no Workflow of run second"),
        (["retry", "second"], "the cluster has no Workflow of run second"),
        (["resume", "first"], "name the step to go on from, as --from STEP: one of preflight"),
        (["resume", "first", "--from", "trian"], "name the step to go on from"),
        (["logs", "train"], "there is no run in namespace default"),
    ],
)
def test_what_names_nothing_is_one_line_and_78(run: Command, arguments: list[str], line: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (78, "", 1)
    assert ended.err.startswith(line)


def test_a_run_of_this_machine_is_pointed_to_its_own_ways(run: Command, tmp_path: Path) -> None:
    (tmp_path / "workspace/runs/here").mkdir(parents=True)
    ended = run("retry", "here")
    assert ended.code == 78
    assert ended.err.startswith("run here is on this machine: go on with it by python3 workflows/submit.py local")
    assert run("retry", "here", "--target", "argo").err.startswith("the cluster has no Workflow of run here")


def test_a_run_is_looked_for_here_and_on_the_cluster(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("status", "nothing").err.startswith("the cluster has no Workflow of run nothing")
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    ended = run("status", "nothing")
    assert ended.code == 78
    assert ended.err.startswith("there is no run nothing in")
    assert "no Kubernetes cluster can be reached" in ended.err


def test_render_writes_all_objects_for_people_who_apply_by_hand(run: Command, tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    ended = run("render", "--objects", str(folder), "--run-id", "first")
    assert ended.code == 0, ended.err
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(Path(line).name for line in ended.out.splitlines())
    kinds = [body["kind"] for path in folder.iterdir() for body in yaml.safe_load_all(path.read_text())]
    assert {"Workflow", "PersistentVolumeClaim", "RayCluster", "Role", "ServiceAccount"} <= set(kinds)


@pytest.mark.parametrize(
    ("setting", "environment", "base"),
    [
        (None, {}, None),
        (None, {"ARGO_SERVER": "argo.example:2746"}, "https://argo.example:2746"),
        (None, {"ARGO_SERVER": "localhost:2746", "ARGO_SECURE": "false"}, "http://localhost:2746"),
        (None, {"ARGO_SERVER": "argo.example:443", "ARGO_BASE_HREF": "/argo/"}, "https://argo.example:443/argo"),
        ("http://argo:2746/", {"ARGO_SERVER": "other:1"}, "http://argo:2746"),
    ],
)
def test_an_argo_server_is_found_as_the_argo_command_finds_it(
    setting: str | None, environment: dict[str, str], base: str | None
) -> None:
    changes = [f"cluster.argo_server={setting}"] if setting else []
    found = ServerAddress.find(load_settings("demo", changes, {}).cluster, environment)
    assert (found.base if found else None) == base


def test_a_status_object_of_argo_is_never_too_large_at_five_thousand_tasks() -> None:
    """Shards are what the status grows by: 64 of them, each tried four times, with outputs as long as they may be."""
    document = build_workflow(load_settings("swe-qwen2.5-7b", ["images.shards=64"], {}), "swe-qwen2.5-7b", "first")
    parameters = {one["name"]: one["value"] for one in document["spec"]["arguments"]["parameters"]}
    made = ArgoWorkflow("agentic-rl-first", document)
    build = next(template for template in document["spec"]["templates"] if template["name"] == "build-images")
    inputs = [
        {"name": one["name"], "value": parameters.get(one["name"], f"datasets/{'x' * 40}")}
        for one in build["inputs"]["parameters"]
    ]
    names = [f"organisation__repository-name-{index:05d}" for index in range(NAMED_AT_MOST)]
    values = {"broken": json.dumps(names), "summary": "s" * 300}
    outputs = [
        {**one, "value": values.get(one["name"], "79")} for one in build["outputs"]["parameters"] if "value" not in one
    ]
    for index in range(64):
        made.step("build-images", 75, 75, 75, 0, item=f"({index}:{index}/64)")
    for node in made.nodes.values():
        if node["type"] in {"Retry", "Pod"}:
            node["inputs"] = {"parameters": inputs}
            if node["phase"] == "Succeeded":
                node["outputs"] = {"exitCode": "0", "parameters": outputs}
    assert size_of(made.body) < LARGEST_BYTES / 2
