"""The workspace as pods of Ray and of image builds see it: three claims, and folders of the nodes if there are any."""

from agentic.cluster.resources import JsonObject
from agentic.cluster.settings import ClusterSettings


def workspace_volumes(settings: ClusterSettings) -> list[JsonObject]:
    """Named as in the pods of the workflow's steps."""
    claims = {"runs": settings.runs, "models": settings.models, "datasets": settings.datasets}
    return [
        *({"name": name, "persistentVolumeClaim": {"claimName": claim.claim}} for name, claim in claims.items()),
        *(
            {"name": f"host-{index}", "hostPath": {"path": mount.host_path}}
            for index, mount in enumerate(settings.mounts)
        ),
    ]


def workspace_mounts(settings: ClusterSettings) -> list[JsonObject]:
    """Where the volumes show, the guide's places included."""
    root = settings.workspace_path
    places = [("runs", root), ("models", f"{root}/models"), ("datasets", f"{root}/datasets")]
    claims = (("runs", settings.runs), ("models", settings.models), ("datasets", settings.datasets))
    places += [(name, claim.mount_path) for name, claim in claims if claim.mount_path is not None]
    return [
        *({"name": name, "mountPath": path} for name, path in places),
        *(
            {"name": f"host-{index}", "mountPath": mount.mount_path, "readOnly": True}
            for index, mount in enumerate(settings.mounts)
        ),
    ]
