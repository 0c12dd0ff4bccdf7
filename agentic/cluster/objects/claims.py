"""The claims of the workspace, shared by the runs of a namespace: they outlive every run and are never swept."""

from agentic.cluster.labels import shared_labels
from agentic.cluster.resources import CLAIMS, JsonObject
from agentic.cluster.settings import ClaimSettings, ClusterSettings


def claims_of(settings: ClusterSettings) -> dict[str, ClaimSettings]:
    """By the name of their section, in the order in which people read them."""
    return {"models": settings.models, "datasets": settings.datasets, "runs": settings.runs}


def claims(settings: ClusterSettings) -> list[JsonObject]:
    return [_claim(settings, claim) for claim in claims_of(settings).values()]


def _claim(settings: ClusterSettings, claim: ClaimSettings) -> JsonObject:
    spec: JsonObject = {
        "accessModes": [claim.access_mode],
        "resources": {"requests": {"storage": claim.size}},
    }
    if claim.storage_class is not None:
        spec["storageClassName"] = claim.storage_class
    return {**CLAIMS.head(claim.claim, namespace=settings.namespace, labels=shared_labels()), "spec": spec}
