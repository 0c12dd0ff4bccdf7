"""Troubles that Argo reports of the workflow itself."""

from agentic.cluster.troubles.kinds import SAYING, Kind, Place, sign

OPERATOR = "Argo 4.0.5, workflow/controller/operator.go"
OBJECT = (Place.OBJECT,)

KINDS = (
    Kind(
        "workflow-stopped",
        "somebody stopped the workflow",
        "python3 workflows/submit.py retry RUN goes on",
        (sign(OBJECT, r"Stopped with strategy '", OPERATOR),),
    ),
    Kind(
        "workflow-too-large",
        "the Workflow's status is too large for the API server",
        "lower images.shards, or switch on Argo's node status offloading",
        (
            sign(
                (*OBJECT, *SAYING),
                r"workflow is longer than maximum allowed size|offload node status is not supported"
                r"|etcdserver: request is too large",
                "Argo 4.0.5, workflow/packer/packer.go; etcd",
            ),
        ),
    ),
    Kind(
        "waits-for-lock",
        "another run writes the same folders",
        "wait, or stop the other run; give runs that differ a data.name or model.name each",
        (sign(OBJECT, r"Waiting for \S+ lock", "Argo 4.0.5, workflow/sync/semaphore.go"),),
        transient=True,
    ),
    Kind(
        "executor-failed",
        "Argo's executor in the pod failed, not the step",
        "read its words: kubectl logs POD -c wait; rights on workflowtaskresults are the usual cause",
        (sign(OBJECT, r"^\(?(?:wait|init)\)?: Error \(exit code \d+\)", "Argo 4.0.5, inferFailedReason"),),
        transient=True,
        is_general=True,
    ),
    Kind(
        "step-failed",
        "a step failed for a reason of its own",
        "its line says what to do; its log has the rest: python3 workflows/submit.py logs RUN STEP",
        (sign(OBJECT, r"^Error \(exit code \d+\)", "Argo 4.0.5, inferFailedReason"),),
        is_general=True,
    ),
)
