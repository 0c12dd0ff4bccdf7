"""Who may reach a run's Ray cluster. Ray runs what it is sent, so only the run's own pods get at it.

Sandboxes hold untrusted code: what they may reach is said by a policy of their own (`agentic.sandbox.kube.manifests`),
and here their way in is the rollout proxy's port alone, whatever that other policy says.
"""

from agentic.cluster.labels import (
    ROLE_LABEL,
    ROLE_PREFETCH,
    ROLE_SANDBOX,
    ROLE_TRAINER,
    RUN_LABEL,
    labels_of_run,
)
from agentic.cluster.resources import NETWORK_POLICIES, JsonObject
from agentic.cluster.settings import ClusterSettings, label_map


def ray_policy(settings: ClusterSettings, run_id: str, proxy_port: int | None = None) -> JsonObject:
    """Of the pods that train: all ports for the run's steps and for `cluster.ray_clients`, the proxy's for sandboxes.

    Kubelet's probes and `kubectl port-forward` come from the node and pass."""
    own = {
        "matchLabels": {RUN_LABEL: run_id},
        "matchExpressions": [{"key": ROLE_LABEL, "operator": "NotIn", "values": [ROLE_SANDBOX, ROLE_PREFETCH]}],
    }
    peers: list[JsonObject] = [{"podSelector": own}]
    if settings.ray_clients:
        peers.append({"podSelector": {"matchLabels": label_map(settings.ray_clients)}})
    ingress: list[JsonObject] = [{"from": peers}]
    if proxy_port is not None:
        sandboxes = {"podSelector": {"matchLabels": {ROLE_LABEL: ROLE_SANDBOX}}}
        ingress.append({"from": [sandboxes], "ports": [{"protocol": "TCP", "port": proxy_port}]})
    head = NETWORK_POLICIES.head(f"ray-{run_id}", namespace=settings.namespace, labels=labels_of_run(run_id))
    pods = {"matchLabels": {RUN_LABEL: run_id, ROLE_LABEL: ROLE_TRAINER}}
    return {**head, "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}}
