"""What a run needs in a cluster beside its Workflow, its rights included, as files for people who apply by hand.

`submit` makes the same objects through the API server: claims and account before the Workflow, BuildKit from
build-images, the network policy and the RayCluster from the steps that train. So these files are for reading, for an
admin who gives rights that a submitter may not give, and for clusters that take objects from a repository alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from agentic.cluster.objects.buildkit import buildkit
from agentic.cluster.objects.claims import claims
from agentic.cluster.objects.policies import ray_policy
from agentic.cluster.objects.rights import MoreRights, rights
from agentic.cluster.ray_clusters import stamped
from agentic.sandbox.kube.rights import sandbox_rules
from agentic.sandbox.settings import KubeSandbox
from steps.ray_head import manifest_of
from workflows.settings import Settings


def sandbox_rights(settings: Settings) -> list[MoreRights]:
    """What the account of a run's pods needs for its sandboxes; empty where they are no business of the cluster's."""
    sandbox = settings.sandbox
    if not isinstance(sandbox, KubeSandbox):
        return []
    return [MoreRights(sandbox.provider, sandbox_rules(sandbox), sandbox.namespace)]


def objects(settings: Settings, run_id: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Name of a file and what is in it, in the order in which they are applied."""
    cluster, sandbox = settings.cluster, settings.sandbox
    yield "10-claims.yaml", claims(cluster)
    yield "20-account.yaml", rights(cluster, sandbox_rights(settings))
    if settings.images.buildkit_address is None:
        yield "30-buildkit.yaml", buildkit(cluster, plain_http=settings.images.registry.plain_http)
    if cluster.network_policies and settings.rollout.use_local_trial:
        yield "40-network-policy.yaml", [ray_policy(cluster, run_id, getattr(sandbox, "proxy_port", None))]
    ray = manifest_of(cluster, settings.ray, settings.train, settings.rollout, run_id)
    # With the digest by which launch-cluster finds one that somebody applied to be its own, instead of replacing it.
    yield "50-raycluster.yaml", [stamped(ray)]


def write_objects(settings: Settings, run_id: str, directory: Path) -> list[Path]:
    """One file for each topic; what else lies in the folder stays.

    Raises:
        PermanentError: the RayCluster's pods do not make the machines that training is told to use.
    """
    documents = {directory / name: bodies for name, bodies in objects(settings, run_id)}
    directory.mkdir(parents=True, exist_ok=True)
    for path, bodies in documents.items():
        # Through JSON, so that what two objects share is written twice instead of as a reference.
        path.write_text(yaml.safe_dump_all(json.loads(json.dumps(bodies)), sort_keys=False, width=120))
    return list(documents)
