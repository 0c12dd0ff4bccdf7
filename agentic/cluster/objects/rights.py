"""The account of a run's pods and its rights: one namespace, the verbs that are used, and no Secret.

The workflow's steps, Ray's pods and Argo's executor share the account. What sandboxes need depends on their provider
and comes from it as further rights, each a Role of its own beside the pipeline's, so that two runs whose sandboxes
differ take nothing from each other. Whoever may create pods or Jobs may mount any Secret of the namespace into one:
give the pipeline a namespace of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentic.cluster.access import Rule, account, role
from agentic.cluster.labels import shared_labels
from agentic.cluster.resources import (
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    RAY_CLUSTERS,
    SERVICES,
    WORKFLOWS,
    JsonObject,
)
from agentic.cluster.settings import ClusterSettings


@dataclass(frozen=True, slots=True)
class MoreRights:
    """What a run needs besides, such as that of its sandboxes."""

    name: str
    """Of the kind, such as `kruise`; ends the Role's name."""
    rules: Sequence[JsonObject]
    namespace: str | None = None
    """Where; None is the pipeline's own."""


RULES: tuple[Rule, ...] = (
    # Argo's executor reports by these, one for each pod.
    Rule(WORKFLOWS.group, ("workflowtaskresults",), ("create", "patch")),
    # Whether a step that is told to end takes its work along.
    Rule(WORKFLOWS.group, (WORKFLOWS.plural,), ("get",)),
    # launch-cluster and train make the cluster or find it, cleanup ends it.
    Rule(RAY_CLUSTERS.group, (RAY_CLUSTERS.plural,), ("get", "list", "watch", "create", "patch", "delete")),
    # Why a pod does not start, and what it said.
    Rule(PODS.group, (PODS.plural,), ("get", "list", "watch", "delete")),
    Rule(PODS.group, ("pods/log",), ("get",)),
    Rule(EVENTS.group, (EVENTS.plural,), ("list",)),
    Rule(CLAIMS.group, (CLAIMS.plural,), ("get", "list")),
    # build-images makes BuildKit where there is none, and a Job for each image.
    Rule(JOBS.group, (JOBS.plural,), ("get", "list", "watch", "create", "delete")),
    Rule(DEPLOYMENTS.group, (DEPLOYMENTS.plural,), ("get", "create", "patch")),
    Rule(SERVICES.group, (SERVICES.plural, CONFIG_MAPS.plural), ("get", "list", "create", "patch", "delete")),
    Rule(NETWORK_POLICIES.group, (NETWORK_POLICIES.plural,), ("get", "list", "create", "patch", "delete")),
)
"""Of the pipeline itself, whatever its sandboxes are."""


def pipeline_rules() -> list[JsonObject]:
    return [rule.body for rule in RULES]


def rights(settings: ClusterSettings, more: Sequence[MoreRights] = ()) -> list[JsonObject]:
    """The account, its Role and RoleBinding, and a further pair for each of `more`."""
    name, namespace = settings.service_account, settings.namespace
    labels = shared_labels()
    made = account(name, pipeline_rules(), namespace, mounts_token=True, labels=labels)
    for one in more:
        where = one.namespace or namespace
        made += role(f"{name}-{one.name}", one.rules, (name, namespace), namespace=where, labels=labels)
    return made
