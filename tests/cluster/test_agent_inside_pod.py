"""An agent inside a pod reaches the proxy in another pod, and nothing else: the trainer's pod runs the proxy and one
rollout, under the sandboxes' account, as in a workflow."""

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from agentic.sandbox.kube.rights import sandbox_rules
from agentic.sandbox.settings import PodSandbox
from testbed.access import ClusterAccess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
PORT = 8400


def trainer(name: str, namespace: str, account: str, options: dict[str, Any]) -> dict[str, Any]:
    """This machine's code in a pod of the base image: the same paths, by mounts that only a test may have."""
    folders = dict.fromkeys([str(ROOT), sys.prefix, sys.base_prefix, "/usr"])
    mounts = [
        {"name": f"code-{number}", "mountPath": folder, "readOnly": True} for number, folder in enumerate(folders)
    ]
    volumes = [
        {"name": f"code-{number}", "hostPath": {"path": folder, "type": "Directory"}}
        for number, folder in enumerate(folders)
    ]
    paths = [ROOT, ROOT / "tests" / "doubles"]
    environment = {"PYTHONPATH": ":".join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}
    command = [sys.executable, str(ROOT / "tests/doubles/trainer_in_pod.py"), json.dumps(options)]
    container = {
        "name": "trainer",
        "image": "agentic/base:local",
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "volumeMounts": mounts,
    }
    labels = {"agentic-rl/role": "trainer", "agentic-rl/run": "in-pod"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "serviceAccountName": account,
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": volumes,
        },
    }


def finish(cluster: ClusterAccess, name: str, namespace: str) -> dict[str, Any]:
    """What the trainer printed last."""
    until = time.monotonic() + 180
    while cluster.get("pod", name, f"--namespace={namespace}")["status"]["phase"] not in ("Succeeded", "Failed"):
        assert time.monotonic() < until, cluster.kubectl("describe", "pod", name, f"--namespace={namespace}")
        time.sleep(1)
    log = cluster.kubectl("logs", name, f"--namespace={namespace}")
    last = log.strip().rpartition("\n")[2]
    assert last.startswith("{"), log[-3000:]
    found: dict[str, Any] = json.loads(last)
    return found


def test_an_agent_inside_a_pod_reaches_its_session_and_nothing_else(
    cluster: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    cluster.make_account("sandboxes", namespace, sandbox_rules(PodSandbox()), tmp_path / "sandboxes.kubeconfig")
    service = cluster.get("service", "kubernetes", "--namespace=default")["spec"]["clusterIP"]
    forbidden = [f"{service}:443", f"{cluster.host}:6443", "127.0.0.1:8400"]
    name = f"trainer-{uuid.uuid4().hex[:6]}"
    cluster.apply(trainer(name, namespace, "sandboxes", {"port": PORT, "forbidden": forbidden}))
    told = finish(cluster, name, namespace)
    address = cluster.get("pod", name, f"--namespace={namespace}")["status"]["podIP"]
    assert told["outcome"] == "solved", told
    assert told["base_url"] == f"http://{address}:{PORT}"
    assert told["open"] == []
    assert told["closed"] == [*forbidden, f"{address}:{PORT + 1}"]
    left = cluster.get("pods,jobs,networkpolicies", f"--namespace={namespace}")["items"]
    assert [one["metadata"]["name"] for one in left if not one["metadata"].get("deletionTimestamp")] == [name]
