"""The cluster for tests is a real one: pods run, limits hold, rights bind, and thousands of pods can be pretended."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from testbed.access import Account, ClusterAccess
from testbed.fake_nodes import NODE_SELECTOR, TOLERATION, fake_node

pytestmark = pytest.mark.cluster

BASE = "agentic/base:local"


def make_pod(name: str, *command: str, memory: str = "64Mi", **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BASE,
        "imagePullPolicy": "IfNotPresent",
        "command": command or ("sleep", "600"),
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": memory}},
    }
    fixed = {"restartPolicy": "Never", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **fixed, **spec},
    }


@pytest.fixture
def run_pod(cluster: ClusterAccess, namespace: str) -> Callable[..., str]:
    """Makes the pod, waits for a condition or phase; the pod's name."""

    def run(pod: dict[str, Any], until: str = "condition=Ready") -> str:
        name: str = pod["metadata"]["name"]
        cluster.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(pod))
        cluster.kubectl("wait", f"--namespace={namespace}", f"--for={until}", f"pod/{name}", "--timeout=40s")
        return name

    return run


def test_a_pod_runs_to_its_end(cluster: ClusterAccess, namespace: str, run_pod: Callable[..., str]) -> None:
    run_pod(make_pod("hello", "python3", "-c", "print(6 * 7)"), until="jsonpath={.status.phase}=Succeeded")
    assert cluster.kubectl("logs", f"--namespace={namespace}", "hello") == "42\n"


def test_a_command_runs_in_a_pod_by_way_of_the_api_server(
    cluster: ClusterAccess, namespace: str, run_pod: Callable[..., str]
) -> None:
    name = run_pod(make_pod("sandbox"))
    into = ("exec", f"--namespace={namespace}", "--stdin", name, "--")
    assert cluster.kubectl(*into, "wc", "-c", stdin="x" * 100_000) == "100000\n"
    with pytest.raises(RuntimeError, match="exit code 7"):
        cluster.kubectl(*into, "bash", "-c", "exit 7")


def test_a_pod_over_its_memory_limit_is_killed_and_says_so(
    cluster: ClusterAccess, namespace: str, run_pod: Callable[..., str]
) -> None:
    run_pod(make_pod("greedy", "python3", "-c", "bytearray(256 << 20)"), until="jsonpath={.status.phase}=Failed")
    status = cluster.get("pod", "greedy", f"--namespace={namespace}")["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


REACHES = """
import socket, sys
def reaches(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        return False
    return True
print(*map(reaches, sys.argv[1:]))
"""


def test_a_pod_reaches_a_server_of_the_test_and_the_api_server_and_nothing_else(
    cluster: ClusterAccess, namespace: str, run_pod: Callable[..., str]
) -> None:
    with socket.create_server((cluster.host, 0)) as server:
        addresses = [f"{cluster.host}:{server.getsockname()[1]}", "10.96.0.1:443", "192.0.2.1:80"]
        run_pod(make_pod("caller", "python3", "-c", REACHES, *addresses), until="jsonpath={.status.phase}=Succeeded")
    assert cluster.kubectl("logs", f"--namespace={namespace}", "caller") == "True True False\n"


def test_a_network_policy_leaves_a_pod_the_one_port_that_it_names(
    cluster: ClusterAccess, namespace: str, run_pod: Callable[..., str]
) -> None:
    server = make_pod("server", "python3", "-m", "http.server", "8000")
    server["metadata"]["labels"] = {"role": "proxy"}
    address = cluster.get("pod", run_pod(server), f"--namespace={namespace}")["status"]["podIP"]
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "proxy-only", "namespace": namespace},
        "spec": {
            "podSelector": {"matchLabels": {"role": "sandbox"}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [
                {
                    "to": [{"podSelector": {"matchLabels": {"role": "proxy"}}}],
                    "ports": [{"protocol": "TCP", "port": 8000}],
                }
            ],
        },
    }
    cluster.apply(policy)
    sandbox = make_pod("sandbox")
    sandbox["metadata"]["labels"] = {"role": "sandbox"}
    run_pod(sandbox)

    def asks() -> str:
        with socket.create_server((cluster.host, 0)) as other:
            addresses = [f"{address}:8000", f"{cluster.host}:{other.getsockname()[1]}", "10.96.0.1:443"]
            into = ("exec", f"--namespace={namespace}", "sandbox", "--", "python3", "-c", REACHES)
            return cluster.kubectl(*into, *addresses)

    deadline = time.monotonic() + 20
    while asks() != "True False False\n" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert asks() == "True False False\n"


def test_an_account_may_do_what_its_role_says_and_nothing_else(
    cluster: ClusterAccess, namespace: str, make_account: Callable[..., Account], run_pod: Callable[..., str]
) -> None:
    run_pod(make_pod("sandbox"))
    account = make_account([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "create"]}])

    def ask(*arguments: str, stdin: str | None = None) -> str:
        return cluster.kubectl(*arguments, stdin=stdin, kubeconfig=account.kubeconfig)

    assert ask("get", "pods", "--output=name") == "pod/sandbox\n"
    ask("create", "-f", "-", stdin=json.dumps(make_pod("mine")))
    for refused in (
        ("delete", "pod", "sandbox"),
        ("exec", "sandbox", "--", "true"),
        ("get", "secrets"),
        ("get", "pods", "--namespace=kube-system"),
    ):
        with pytest.raises(RuntimeError, match="orbidden"):
            ask(*refused)


def test_a_namespace_that_enforces_restricted_pods_refuses_a_privileged_one(
    cluster: ClusterAccess, namespace: str
) -> None:
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    pod = make_pod("wild")
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(RuntimeError, match="violates PodSecurity"):
        cluster.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(pod))


@pytest.mark.usefixtures("sandbox_crds")
def test_objects_of_the_sandbox_controllers_are_checked_by_their_schemas(
    cluster: ClusterAccess, namespace: str
) -> None:
    claim = {
        "apiVersion": "agents.kruise.io/v1alpha1",
        "kind": "SandboxClaim",
        "metadata": {"name": "one", "namespace": namespace},
        "spec": {"templateName": "pool", "replicas": 1},
    }
    cluster.apply(claim)
    with pytest.raises(RuntimeError, match="replicas is immutable"):
        cluster.apply({**claim, "spec": {"templateName": "pool", "replicas": 2}})


@pytest.mark.timeout(180)
def test_a_thousand_pods_get_ready_on_fake_nodes(cluster: ClusterAccess, namespace: str) -> None:
    nodes = [fake_node(f"{namespace}-{number}", pods=300) for number in range(4)]
    cluster.apply(*nodes)
    pod = make_pod("unused", nodeSelector=NODE_SELECTOR, tolerations=[TOLERATION], restartPolicy="Always")
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "crowd", "namespace": namespace},
        "spec": {
            "replicas": 1000,
            "selector": {"matchLabels": {"app": "crowd"}},
            "template": {"metadata": {"labels": {"app": "crowd"}}, "spec": pod["spec"]},
        },
    }
    try:
        cluster.apply(deployment)
        cluster.kubectl(
            "wait",
            f"--namespace={namespace}",
            "--for=jsonpath={.status.readyReplicas}=1000",
            "deployment/crowd",
            "--timeout=150s",
        )
    finally:
        cluster.kubectl("delete", "deployment", "crowd", f"--namespace={namespace}", "--wait=false")
        cluster.kubectl("delete", "node", *(node["metadata"]["name"] for node in nodes), "--wait=false")
