"""Why a Deployment of ours is not there yet, by name.

What a Deployment says of itself (a pod that quota or admission refuses), its pods' states and their events go through
the catalogue of troubles. What the account may not read is left out.
"""

import asyncio
from collections.abc import Sequence

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import ForbiddenError, NotFoundError
from agentic.cluster.resources import DEPLOYMENTS, EVENTS, PODS, JsonObject, Resource, name_of, uid_of
from agentic.cluster.troubles import Evidence, Trouble, find_troubles


async def find_deployment_troubles(api: KubeApi, name: str, *, namespace: str | None = None) -> list[Trouble]:
    """What keeps it from being available, what does not pass by itself first; empty where nothing is known to."""
    try:
        deployment = await api.get(DEPLOYMENTS, name, namespace=namespace)
    except (NotFoundError, ForbiddenError):
        return []
    chosen = deployment["spec"]["selector"]["matchLabels"]
    labels = ",".join(f"{key}={value}" for key, value in chosen.items())
    pods = await _known(api, PODS, namespace, labels=labels)
    asked = (_known(api, EVENTS, namespace, fields=f"involvedObject.name={name_of(pod)}") for pod in pods)
    uids = {uid_of(pod) for pod in pods}
    told = [one for found in await asyncio.gather(*asked) for one in found if one["involvedObject"].get("uid") in uids]
    evidence = Evidence(
        pods=[{"kind": PODS.kind, **pod} for pod in pods],
        events=told,
        objects=[{"kind": DEPLOYMENTS.kind, **deployment}],
    )
    return sorted(find_troubles(evidence), key=lambda trouble: trouble.transient)


async def _known(api: KubeApi, kind: Resource, namespace: str | None, **chosen: str) -> Sequence[JsonObject]:
    try:
        return (await api.list(kind, namespace=namespace, **chosen)).items
    except ForbiddenError:
        return ()
