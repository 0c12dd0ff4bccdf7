"""What a step knows of the Workflow that it is part of, so that sandboxes end with it.

An owner reference holds within one namespace and one cluster only, and the garbage collector removes what names an
owner that is not there: so it is set just when sandboxes surely live beside the Workflow.
"""

from collections.abc import Mapping
from typing import Any

from agentic.sandbox.settings import KubeSandbox, SandboxOwner, SandboxSettings

NAME, UID, NAMESPACE = "AGENTIC_WORKFLOW", "AGENTIC_WORKFLOW_UID", "AGENTIC_WORKFLOW_NAMESPACE"
"""Environment variables of a step's pod."""

API_VERSION, KIND = "argoproj.io/v1alpha1", "Workflow"


def owned_by_workflow(sandbox: SandboxSettings, environment: Mapping[str, str], *, on_argo: bool) -> SandboxSettings:
    """The same, with the Workflow as `sandbox.owner` where settings name none."""
    if not on_argo or not isinstance(sandbox, KubeSandbox) or sandbox.owner is not None:
        return sandbox
    name, uid, namespace = (environment.get(variable) for variable in (NAME, UID, NAMESPACE))
    is_elsewhere = sandbox.namespace not in (None, namespace) or "KUBECONFIG" in environment
    if not name or not uid or is_elsewhere:
        return sandbox
    owner = SandboxOwner(api_version=API_VERSION, kind=KIND, name=name, uid=uid)
    return sandbox.model_copy(update={"owner": owner})


def reference(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """As an entry of ownerReferences, for objects in the Workflow's own namespace; None where there is none."""
    name, uid = environment.get(NAME), environment.get(UID)
    return {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid} if name and uid else None
