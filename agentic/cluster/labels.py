"""Labels of what we make in a cluster, and selectors of them; whoever sweeps, watches or opens a port goes by these."""

from collections.abc import Mapping

PART_LABEL = "app.kubernetes.io/part-of"
PART = "agentic-rl"
RUN_LABEL = "agentic-rl/run"
"""Of everything that belongs to one run, and of nothing that runs share."""
STEP_LABEL = "agentic-rl/step"
"""Of a step's pods: the step."""
ROLE_LABEL = "agentic-rl/role"
"""Of pods: what they are for."""
ROLE_TRAINER = "trainer"
"""Of the pods that serve the rollout proxy: sandboxes may reach its port there."""
ROLE_SANDBOX, ROLE_PREFETCH = "sandbox", "prefetch"
"""Of pods that hold untrusted code or images: they reach nothing of ours but the proxy."""
ROLE_PROBE = "probe"
"""Of the doctor's own pod."""


def shared_labels(**more: str) -> dict[str, str]:
    """Of what all runs of a namespace use."""
    return {PART_LABEL: PART, **more}


def labels_of_run(run_id: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of what belongs to a run. Run ids of the workflow are label values as they are."""
    return {PART_LABEL: PART, RUN_LABEL: run_id, **(more or {})}


def selector_of_run(run_id: str) -> str:
    return f"{RUN_LABEL}={run_id}"
