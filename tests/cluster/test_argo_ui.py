"""What Argo's UI shows of a run, asked of Argo's server as the UI asks: its list, a Workflow's nodes, a node's log, and
its Retry button. The paths and fields are those of `ui/src/shared/services/workflows-service.ts` of 4.0.5; the pages
themselves are built from a repository that no registry serves, so that nobody looks at them here.
"""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from argo_rig import ArgoRig
from stand_in_workflow import plan, stand_in, trace

from testbed.access import ClusterAccess
from testbed.controllers import ARGO_SERVER_PORT
from workflows.argo.nodes import phase_of
from workflows.argo.retrying import pod_name
from workflows.pipeline import SECTIONS, STEPS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LISTED = (
    *("metadata", "items.metadata.uid", "items.metadata.name", "items.metadata.namespace"),
    *("items.metadata.creationTimestamp", "items.metadata.labels", "items.metadata.annotations", "items.status.phase"),
    *("items.status.message", "items.status.finishedAt", "items.status.startedAt", "items.status.progress"),
    *("items.status.estimatedDuration", "items.spec.suspend", "items.spec.arguments"),
)
"""What the UI's list asks for of each Workflow."""

NAME = "agentic-rl-shown"


@dataclass(frozen=True)
class Browser:
    """One who has logged in with a token."""

    namespace: str
    token: str

    def ask(self, path: str, method: str = "GET", body: Any = None) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{ARGO_SERVER_PORT}/api/v1/workflows/{self.namespace}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": self.token, "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
        return text


@pytest.fixture
def browser(cluster: ClusterAccess, argo: ArgoRig) -> Browser:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    return Browser(argo.namespace, f"Bearer {config['users'][0]['user']['token']}")


def nodes_by_name(workflow: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """As the UI writes them at its circles."""
    return {node["displayName"]: node for node in (workflow.get("status", {}).get("nodes") or {}).values()}


def values(parameters: list[dict[str, Any]]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in parameters}


def test_the_ui_finds_names_settings_summaries_reasons_and_logs_and_its_button_retries(
    argo: ArgoRig, browser: Browser, tmp_path: Path
) -> None:
    plan(tmp_path, "report", "exit 78")
    argo.create(stand_in(tmp_path, argo.namespace, "shown", start_from="build-images"))
    assert phase_of(argo.until_over(NAME)) == "Failed"

    (listed,) = json.loads(browser.ask(f"?listOptions.limit=50&fields={','.join(LISTED)}"))["items"]
    annotations = listed["metadata"]["annotations"]
    assert annotations["workflows.argoproj.io/title"] == "shown: grpo, tiny on repair"
    assert annotations["workflows.argoproj.io/description"].startswith("Profile demo: 8 steps of 16 tasks x 8 rollouts")
    assert listed["metadata"]["labels"]["agentic-rl/run"] == "shown"
    settings = values(listed["spec"]["arguments"]["parameters"])
    assert settings.keys() == {"run_id", "profile", "start_from", *SECTIONS}
    assert json.loads(settings["train"])["steps"] == 8

    workflow = json.loads(browser.ask(f"/{NAME}"))
    nodes = nodes_by_name(workflow)
    assert nodes.keys() >= {*STEPS, "cleanup"}
    for index in range(2):  # Argo (4.0.5) shows a part that ends fast by its own counter
        assert {f"build-images-{index}", f"build-images({index}:{index}/2)"} & nodes.keys()
    given = values(nodes["train"]["inputs"]["parameters"])
    assert given.keys() >= {"run_id", "train", "ray", "rollout", "sandbox", "cluster"}
    assert values(nodes["train"]["outputs"]["parameters"])["summary"] == "train is done"
    assert "report was told to leave with exit 78" in nodes["report(0)"]["message"]
    assert nodes["report(0)"]["outputs"]["exitCode"] == "78"

    pod = pod_name(workflow, nodes["report(0)"])
    query = f"logOptions.container=main&grep=&logOptions.follow=true&podName={pod}"
    events = [line.removeprefix("data: ") for line in browser.ask(f"/{NAME}/log?{query}").splitlines() if line.strip()]
    lines = [json.loads(event)["result"].get("content") for event in events]
    assert "report of run shown begins" in lines

    browser.ask(f"/{NAME}/retry", "PUT", {"parameters": []})
    assert phase_of(argo.until_over(NAME)) == "Succeeded"
    assert trace(tmp_path)[-2:] == ["report", "cleanup"]
    assert trace(tmp_path).count("train") == 1
