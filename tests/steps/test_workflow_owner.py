"""What workflow settings become on their way to the provider of sandboxes."""

from pathlib import Path
from typing import Any

import pytest

from agentic.sandbox.settings import KruiseSandbox, KubeSandbox, PodSandbox, SandboxOwner, pooled_for
from agentic.training.job import rollout_job
from steps.contract import Step
from steps.output import Progress
from steps.train import TrainInput
from steps.training_input import training_job
from steps.workflow_owner import NAME, NAMESPACE, UID, owned_by_workflow
from steps.workspace import Workspace
from workflows.pipeline import build_workflow
from workflows.settings import load_settings

IN_WORKFLOW = {NAME: "agentic-rl-try", UID: "u-1", NAMESPACE: "rl"}
KRUISE = ("sandbox.provider=kruise", "sandbox.pool.by=task")


def job(tmp_path: Path, *arguments: str, on_argo: bool = False) -> Any:
    settings = load_settings("demo", arguments, {})
    sections = {name: getattr(settings, name) for name in ("train", "ray", "rollout", "sandbox")}
    inputs = TrainInput(run_id="try", model_dir="models/m", data_dir="datasets/d", **sections)
    step = Step(Workspace(tmp_path, "try"), Progress(tmp_path / "progress.json"), on_argo)
    return training_job(inputs, step)


def test_a_tasks_pool_is_as_large_as_the_task_has_rollouts(tmp_path: Path) -> None:
    made = rollout_job(job(tmp_path, *KRUISE, "train.rollouts_per_prompt=6"))
    assert isinstance(made.sandbox, KruiseSandbox)
    assert made.sandbox.pool.replicas == 6


def test_a_pool_whose_size_is_set_keeps_it(tmp_path: Path) -> None:
    made = rollout_job(job(tmp_path, *KRUISE, "sandbox.pool.replicas=2", "train.rollouts_per_prompt=6"))
    assert isinstance(made.sandbox, KruiseSandbox)
    assert made.sandbox.pool.replicas == 2


def test_only_providers_with_pools_have_them() -> None:
    assert pooled_for(PodSandbox(), 6) == PodSandbox()


def test_sandboxes_end_with_the_workflow_that_they_belong_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IN_WORKFLOW.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    made = rollout_job(job(tmp_path, "sandbox.provider=pod", on_argo=True))
    assert isinstance(made.sandbox, KubeSandbox)
    assert made.sandbox.owner == SandboxOwner(
        api_version="argoproj.io/v1alpha1", kind="Workflow", name="agentic-rl-try", uid="u-1"
    )
    here = rollout_job(job(tmp_path, "sandbox.provider=pod"))
    assert isinstance(here.sandbox, KubeSandbox)
    assert here.sandbox.owner is None, "a local run has no Workflow"


@pytest.mark.parametrize(
    ("changes", "environment"),
    [
        ({"namespace": "other"}, IN_WORKFLOW),
        ({}, {**IN_WORKFLOW, "KUBECONFIG": "/elsewhere"}),
        ({}, {NAME: "w", NAMESPACE: "rl"}),
        ({}, {}),
    ],
    ids=["another namespace", "perhaps another cluster", "no uid", "nothing"],
)
def test_an_owner_that_is_perhaps_not_there_is_not_named(changes: Any, environment: dict[str, str]) -> None:
    """The collector would remove the sandboxes at once."""
    sandbox = PodSandbox(**changes)
    assert owned_by_workflow(sandbox, environment, on_argo=True) == sandbox


def test_an_owner_of_the_settings_and_the_same_namespace_by_name_are_kept() -> None:
    mine = SandboxOwner(api_version="v1", kind="ConfigMap", name="mine", uid="u-2")
    assert owned_by_workflow(PodSandbox(owner=mine), IN_WORKFLOW, on_argo=True) == PodSandbox(owner=mine)
    named = owned_by_workflow(PodSandbox(namespace="rl"), IN_WORKFLOW, on_argo=True)
    assert isinstance(named, KubeSandbox)
    assert named.owner is not None


def test_every_step_is_told_its_workflow() -> None:
    document = build_workflow(load_settings("demo", (), {}), "demo", "try")
    scripts = [template["script"] for template in document["spec"]["templates"] if "script" in template]
    for script in scripts:
        told = {variable["name"]: variable.get("value") for variable in script["env"]}
        assert told[NAME] == "{{workflow.name}}"
        assert told[UID] == "{{workflow.uid}}"
        assert told[NAMESPACE] == "{{workflow.namespace}}"
    assert len(scripts) == 9
