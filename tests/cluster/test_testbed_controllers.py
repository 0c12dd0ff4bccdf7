"""What the pipeline needs beside Kubernetes is real too: names resolve, Argo runs workflows, KubeRay makes Ray pods."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.access import Account, ClusterAccess
from testbed.tools import Toolbox

pytestmark = pytest.mark.cluster

BASE = "agentic/base:local"
TASK_RESULTS = [{"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}]


def _create(cluster: ClusterAccess, namespace: str, document: dict[str, Any]) -> None:
    cluster.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(document))


def test_names_of_services_resolve_in_pods(cluster: ClusterAccess, namespace: str) -> None:
    """The base of sandboxes knows no names on purpose, so the container is told to ask."""
    lookup = "python3 -c \"import socket; print(socket.gethostbyname('kubernetes.default.svc.cluster.local'))\""
    asks = f"echo 'hosts: dns' >/etc/nsswitch.conf; {lookup}"
    container = {"name": "main", "image": BASE, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", asks]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "asks"},
        "spec": {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0},
    }
    _create(cluster, namespace, pod)
    ended = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", f"--namespace={namespace}", ended, "pod/asks", "--timeout=40s")
    assert cluster.kubectl("logs", f"--namespace={namespace}", "asks") == "10.96.0.1\n"


def test_buildkit_builds_an_image_that_a_pod_pulls_from_the_registry(
    cluster: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    """From nothing: the image is one static program of the cluster's own."""
    tools = Toolbox(cluster.layout)
    shutil.copy(tools.path("pause"), tmp_path / "pause")
    (tmp_path / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
    image = f"{cluster.layout.registry}/{namespace}/waits:1"
    where = [f"--local=context={tmp_path}", f"--local=dockerfile={tmp_path}"]
    pushed = f"--output=type=image,name={image},push=true"
    build = [str(tools.path("buildctl")), f"--addr=tcp://{cluster.layout.builder}", "build", "--frontend=dockerfile.v0"]
    subprocess.run([*build, *where, pushed], check=True, capture_output=True, timeout=50)
    cluster.kubectl("run", f"--namespace={namespace}", "waits", f"--image={image}")
    cluster.kubectl("wait", f"--namespace={namespace}", "--for=condition=Ready", "pod/waits", "--timeout=40s")


def test_argo_runs_a_workflow_with_a_retry_under_the_rights_of_its_account(
    cluster: ClusterAccess, namespace: str, make_account: Callable[..., Account]
) -> None:
    """The first attempt leaves with 75, which the expression retries; the second one's output reaches the Workflow."""
    make_account(TASK_RESULTS, "workflow")
    source = (
        "import pathlib, sys\npathlib.Path('/tmp/answer').write_text('42')\nsys.exit(75 if {{retries}} == 0 else 0)"
    )
    template = {
        "name": "main",
        "retryStrategy": {"limit": "2", "retryPolicy": "Always", "expression": "asInt(lastRetry.exitCode) == 75"},
        "script": {"image": BASE, "imagePullPolicy": "IfNotPresent", "command": ["python3"], "source": source},
        "outputs": {"parameters": [{"name": "answer", "valueFrom": {"path": "/tmp/answer"}}]},
    }
    workflow = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "retried"},
        "spec": {"entrypoint": "main", "serviceAccountName": "workflow", "templates": [template]},
    }
    _create(cluster, namespace, workflow)
    ended = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", f"--namespace={namespace}", ended, "workflow/retried", "--timeout=55s")
    nodes = json.loads(cluster.kubectl("get", f"--namespace={namespace}", "workflow/retried", "-o", "json"))["status"][
        "nodes"
    ].values()
    pods = sorted((node["displayName"], node["phase"]) for node in nodes if node["type"] == "Pod")
    assert pods == [("retried(0)", "Failed"), ("retried(1)", "Succeeded")]
    answers = [node["outputs"]["parameters"][0]["value"] for node in nodes if node["displayName"] == "retried(1)"]
    assert answers == ["42"]


def test_kuberay_makes_the_head_pod_and_its_service(cluster: ClusterAccess, namespace: str) -> None:
    container = {
        "name": "ray-head",
        "image": BASE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}},
    }
    head = {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": {"spec": {"containers": [container]}}}
    ray = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "verl"},
        "spec": {"rayVersion": "2.60.0", "headGroupSpec": head},
    }
    _create(cluster, namespace, ray)
    cluster.kubectl("wait", f"--namespace={namespace}", "--for=create", "service/verl-head-svc", "--timeout=40s")
    heads = ("get", f"--namespace={namespace}", "pods", "-l", "ray.io/node-type=head", "-o", "name")
    deadline = time.monotonic() + 40
    while not (found := cluster.kubectl(*heads)):
        assert time.monotonic() < deadline, "no head pod came"
        time.sleep(0.2)
    assert found.startswith("pod/verl-head-")
