"""Bringing an object of the pipeline into the cluster, whether it is there or not.

Objects of ours, known by their label, are applied server-side with our field manager and by force, so that a repeat
changes nothing and a newer version changes what it says. Never touched are a claim that exists (it is adopted: its spec
cannot change, and data lies in it), an object that somebody else made, and one of another run.
"""

from collections.abc import Sequence

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import ForeignObjectError, NotFoundError, ObjectEndingError, OtherRunError
from agentic.cluster.labels import PART, PART_LABEL, RUN_LABEL
from agentic.cluster.resources import CLAIMS, JsonObject, Resource, name_of, resource_of, uid_of


async def apply(client: KubeApi, manifest: JsonObject, *, owner: JsonObject | None = None) -> JsonObject:
    """The object as the server has it then. With `owner`, another object of the namespace, it goes when that one goes.

    Raises:
        ForeignObjectError: one of that name is there and lacks our label.
        OtherRunError: it belongs to another run.
        ObjectEndingError: it is being deleted; try again.
    """
    resource, namespace = resource_of(manifest), manifest["metadata"].get("namespace")
    found = await find(client, resource, name_of(manifest), namespace)
    if found is not None:
        _require_ours(resource, found, manifest)
        if resource == CLAIMS:
            return found
    return await client.apply(resource, with_owner(manifest, owner), namespace=namespace)


async def find(client: KubeApi, resource: Resource, name: str, namespace: str | None = None) -> JsonObject | None:
    """The object, if there is one of that name."""
    try:
        return await client.get(resource, name, namespace=namespace)
    except NotFoundError:
        return None


def with_owner(manifest: JsonObject, owner: JsonObject | None) -> JsonObject:
    """The same, belonging to `owner` as well."""
    if owner is None:
        return manifest
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {"name": name_of(owner), "uid": uid_of(owner)}
    owners: Sequence[JsonObject] = manifest["metadata"].get("ownerReferences") or ()
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [*owners, reference]}}


def _require_ours(resource: Resource, found: JsonObject, manifest: JsonObject) -> None:
    metadata, wanted = found["metadata"], manifest["metadata"].get("labels") or {}
    labels, name = metadata.get("labels") or {}, f"{resource.kind} {name_of(found)}"
    if metadata.get("deletionTimestamp"):
        raise ObjectEndingError(f"{name} is being deleted: try again when it is gone")
    if resource == CLAIMS:
        return
    if labels.get(PART_LABEL) != PART:
        raise ForeignObjectError(
            f"{name} exists and was not made by this project (it lacks the label {PART_LABEL}={PART}): name another in "
            "the settings, delete it, or give it the label"
        )
    owner, run = labels.get(RUN_LABEL), wanted.get(RUN_LABEL)
    if owner is None and run is not None:
        raise OtherRunError(f"{name} is shared by all runs: name another in the settings")
    if owner != run:
        raise OtherRunError(
            f"{name} belongs to run {owner}: wait for its end, end it by python3 workflows/submit.py cleanup {owner}, "
            "or name another in the settings"
        )
