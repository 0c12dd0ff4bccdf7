"""The step preflight as in its pod: by an account with the run's rights, looking at the real cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trouble_pods import BASE

from agentic.cluster.objects.rights import pipeline_rules
from agentic.sandbox.kube.rights import sandbox_rules
from agentic.sandbox.settings import PodSandbox
from testbed.access import Account, ClusterAccess
from workflows.settings import load_settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

ROOT = Path(__file__).resolve().parents[2]
RULES = [*pipeline_rules(), *sandbox_rules(PodSandbox())]
WORDS = (
    "sandbox.provider=pod",
    f"sandbox.base_image={BASE}",
    "sandbox.request_memory_mb=16",
    "sandbox.request_cpus=0.01",
    "machine.disk_gib=0",
    *(f'cluster.{section}.storage_class=""' for section in ("models", "datasets", "runs")),
)


def preflight(
    workspace: Path, namespace: str, account: Account, *words: str, **sections: Any
) -> subprocess.CompletedProcess[str]:
    settings = load_settings("demo", [*WORDS, f"cluster.namespace={namespace}", *words], {})
    names = ("data", "model", "images", "sandbox", "rollout", "train", "ray", "cluster", "machine")
    inputs = {name: getattr(settings, name).model_dump(mode="json") for name in names}
    path = workspace / "inputs.json"
    path.write_text(json.dumps({"run_id": "try", "profile": "demo", **inputs, **sections}))
    environment = os.environ | {
        "AGENTIC_WORKSPACE": str(workspace),
        "AGENTIC_TARGET": "argo",
        "AGENTIC_TERMINATION_LOG": str(workspace / "last-words"),
        "KUBECONFIG": str(account.kubeconfig),
    }
    command = [sys.executable, "-m", "steps.preflight", "--inputs", str(path)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)


def test_a_cluster_that_has_all_it_needs_is_passed(
    cluster: ClusterAccess, namespace: str, make_account: Callable[..., Account], tmp_path: Path
) -> None:
    account = make_account(RULES, "rayclustertest")
    done = preflight(tmp_path, namespace, account, "sandbox.proxy_port=8089")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rights: no trouble" in done.stdout
    assert "model tiny is not there yet: download-model makes it" in done.stdout
    assert "data set repair is not there yet: download-data makes it" in done.stdout
    assert (tmp_path / "runs/try/settings.json").is_file()


def test_all_that_is_in_the_way_ends_the_step_for_good_and_is_said_at_once(
    namespace: str, make_account: Callable[..., Account], tmp_path: Path
) -> None:
    account = make_account([rule for rule in RULES if rule["resources"] != ["rayclusters"]], "rayclustertest")
    done = preflight(tmp_path, namespace, account, "model.source=path", f"model.path={tmp_path / 'none'}")
    assert done.returncode == 78, done.stdout + done.stderr
    assert "right-missing: namespace" in done.stdout
    assert "create rayclusters.ray.io" in done.stdout
    assert "path-missing: model.path" in done.stdout
    assert "right-missing" in (tmp_path / "last-words").read_text()


def test_a_policy_that_closes_the_way_to_the_proxy_is_named(
    cluster: ClusterAccess, namespace: str, make_account: Callable[..., Account], tmp_path: Path
) -> None:
    """Somebody else's policy, on the pods that serve the proxy."""
    account = make_account(RULES, "rayclustertest")
    trainers = {
        "podSelector": {"matchLabels": {"agentic-rl/role": "trainer"}},
        "policyTypes": ["Ingress"],
        "ingress": [],
    }
    metadata = {"name": "closed", "namespace": namespace}
    cluster.apply(
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": trainers}
    )
    done = preflight(tmp_path, namespace, account, "sandbox.proxy_port=8089")
    assert "proxy-unreachable: sandbox -> proxy: port 8089" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 75
