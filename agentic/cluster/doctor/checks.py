"""The checks, in the order in which they are told."""

from agentic.cluster.doctor.asking import (
    check_admission,
    check_api,
    check_clocks,
    check_controllers,
    check_kinds,
    check_rights,
)
from agentic.cluster.doctor.capacity import check_gpus, check_nodes, check_room
from agentic.cluster.doctor.examining import Check
from agentic.cluster.doctor.present import check_pods
from agentic.cluster.doctor.probing import check_reach
from agentic.cluster.doctor.pulling import check_pull_secrets
from agentic.cluster.doctor.queues import check_queue
from agentic.cluster.doctor.volumes import check_volumes

READING = (
    Check("API server", check_api),
    Check("clocks", check_clocks),
    Check("rights", check_rights),
    Check("kinds", check_kinds),
    Check("controllers", check_controllers),
    Check("nodes", check_nodes),
    Check("room", check_room),
    Check("GPUs", check_gpus),
    Check("volumes", check_volumes),
    Check("pull secrets", check_pull_secrets),
    Check("queue", check_queue),
    Check("admission", check_admission),
    Check("pods", check_pods),
)
"""Those that change nothing."""

FROM_OUTSIDE = (
    Check("model, data set, free disk", None, "they lie in the claims, where the step preflight looks"),
    Check("sandbox -> proxy", None, "the step preflight tries it with a sandbox"),
)
"""What only pods of the run can see, for whoever would take a silence for a yes."""

ALL = (*READING, Check("reach", check_reach), *FROM_OUTSIDE)
"""With the one that starts a pod of its own."""
