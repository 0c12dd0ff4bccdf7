"""Fixtures of the tests that need a real API server: run them by `make test-cluster`.

They live inside the cluster's network (`python -m testbed run`), so the API server is on loopback, pods can be reached,
and pods reach a server that a test starts at `cluster.host`. Each test gets a namespace of its own, deleted behind it.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from argo_rig import TASK_RESULTS, ArgoRig
from stand_in_workflow import ACCOUNT

from testbed.access import HOST_VARIABLE, Account, ClusterAccess, Rules
from testbed.layout import Layout

CRDS = Path(__file__).parents[1] / "crds"
SANDBOX_GROUPS = ("agents.kruise.io", "agents.x-k8s.io")


@pytest.fixture(scope="session")
def cluster() -> ClusterAccess:
    if HOST_VARIABLE not in os.environ:
        pytest.exit("tests of the cluster run inside its network: make test-cluster", returncode=78)
    return ClusterAccess(Layout.of_this_machine())


@pytest.fixture(scope="session")
def sandbox_crds(cluster: ClusterAccess) -> None:
    """The schemas of OpenKruise Agents and agent-sandbox; their controllers are nowhere."""
    cluster.install_crds(path for path in CRDS.glob("*.yaml") if path.stem.endswith(SANDBOX_GROUPS))


@pytest.fixture
def namespace(cluster: ClusterAccess) -> Iterator[str]:
    """A fresh one, ready for pods; it goes away in the background."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("wait", f"--namespace={name}", "--for=create", "serviceaccount/default", "--timeout=30s")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def make_account(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> Callable[..., Account]:
    """`make_account(rules)`: a service account of the test's namespace with a Role of these rules."""

    def make(rules: Rules, name: str = "restricted") -> Account:
        return cluster.make_account(name, namespace, rules, tmp_path / f"{name}.kubeconfig")

    return make


@pytest.fixture
def argo(cluster: ClusterAccess, namespace: str, make_account: Callable[..., Account]) -> ArgoRig:
    """Argo in the test's namespace, with the account that stand-in workflows run under."""
    make_account(TASK_RESULTS, ACCOUNT)
    made = [f"{kind}/{ACCOUNT}" for kind in ("serviceaccount", "role", "rolebinding")]
    cluster.kubectl("label", f"--namespace={namespace}", *made, "app.kubernetes.io/part-of=agentic-rl")
    return ArgoRig(cluster, namespace)
