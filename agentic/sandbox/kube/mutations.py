"""Whether the cluster's admission left a sandbox's pod as isolated as it was asked for. Pure.

Mutating webhooks add what their owners want everywhere: sidecars, service-account tokens, host paths. Compared is the
whole spec: what we asked for has to come back, limits no larger, and what we did not ask for is named unless it is
known to be harmless, which is listed here: where a pod is placed, whom its image comes from, what the API server fills
in, and what only takes rights away. A field that nobody has heard of is therefore refused.
"""

from collections.abc import Iterator
from typing import Any

from agentic.cluster.quantities import quantity
from agentic.cluster.resources import JsonObject
from agentic.sandbox.errors import SandboxSetupError

HARMLESS_OF_POD = frozenset(
    {
        "affinity",
        "hostname",
        "imagePullSecrets",
        "nodeName",
        "nodeSelector",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "restartPolicy",
        "schedulerName",
        "schedulingGates",
        "serviceAccount",
        "serviceAccountName",
        "subdomain",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
    }
)
"""Placement, and accounts whose token is not mounted."""

HARMLESS_OF_CONTAINER = frozenset({"image", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"})

BY_PARTS = frozenset({"containers", "initContainers", "volumes", "securityContext", "activeDeadlineSeconds"})
CONTAINER_BY_PARTS = frozenset({"securityContext", "resources", "volumeMounts"})
"""Fields that are compared in their own way."""

IDENTITIES = frozenset({"runAsUser", "runAsGroup", "fsGroup"})
MEANS_TRUE = frozenset({"automountServiceAccountToken", "enableServiceLinks", "allowPrivilegeEscalation"})
"""What is on where nothing is said."""
NAMED = {"privileged": "the container became privileged", "readOnlyRootFilesystem": "the root file system is writable"}


def require_isolated(name: str, wanted: JsonObject, got: JsonObject) -> None:
    """Raises SandboxSetupError when a pod's spec is weaker than was asked for."""
    weakened = find_weakened(wanted, got)
    if weakened:
        raise SandboxSetupError(
            f"the cluster's admission weakened sandbox {name}: {', '.join(weakened)}: exempt its namespace from that"
        )


def find_weakened(wanted: JsonObject, got: JsonObject) -> list[str]:
    """What of a pod's spec is weaker than was asked for, each in a few words; empty when nothing is."""
    return [
        *_of_fields("", wanted, got, HARMLESS_OF_POD | BY_PARTS),
        *_of_deadline(wanted.get("activeDeadlineSeconds"), got.get("activeDeadlineSeconds")),
        *_of_context("the pod's ", wanted.get("securityContext", {}), got.get("securityContext") or {}),
        *_of_volumes(wanted.get("volumes", []), got.get("volumes") or []),
        *_of_containers(wanted["containers"], got.get("containers") or []),
        *_of_containers(wanted.get("initContainers", []), got.get("initContainers") or []),
    ]


def _of_fields(place: str, wanted: JsonObject, got: JsonObject, spared: frozenset[str]) -> Iterator[str]:
    for key in sorted((wanted.keys() | got.keys()) - spared):
        asked, found = wanted.get(key), got.get(key)
        if asked == found or (is_no(asked) and is_no(found) and key not in MEANS_TRUE):
            continue
        if key in NAMED:
            yield NAMED[key]
        elif asked is None or (asked is False and found):
            yield f"{place}{key} was set"
        elif found is None:
            yield f"{place}{key} was removed"
        else:
            yield f"{place}{key} is {_short(found)}"


def is_no(value: Any) -> bool:
    """Whether a field says no more than its absence; a number does, since the user 0 is root."""
    return value is None or value is False or value in ("", [], {})


def _of_deadline(wanted: int | None, got: int | None) -> Iterator[str]:
    if wanted is not None and got is None:
        yield "activeDeadlineSeconds was removed"
    elif wanted is not None and got is not None and got > wanted:
        yield f"activeDeadlineSeconds is {got}"


def _of_context(place: str, wanted: JsonObject, got: JsonObject) -> Iterator[str]:
    """What takes rights away may be added: a user that is not root, more profiles, fewer capabilities."""
    spared = {"capabilities"}
    for key, value in got.items():
        if key in wanted:
            continue
        is_stricter = (
            (key in IDENTITIES and value)
            or (key == "runAsNonRoot" and value)
            or (key == "procMount" and value == "Default")
            or (key == "appArmorProfile" and value.get("type") != "Unconfined")
            or (key == "seLinuxOptions" and set(value) == {"level"})
            or key in ("supplementalGroups", "fsGroupChangePolicy")
        )
        if is_stricter:
            spared.add(key)
    yield from _of_fields(place, wanted, got, frozenset(spared))
    asked, found = wanted.get("capabilities"), got.get("capabilities") or {}
    if asked is None:
        asked = {}
    is_dropped = set(asked.get("drop", [])) <= set(found.get("drop") or [])
    if not is_dropped or set(found.get("add") or []) - set(asked.get("add", [])):
        yield "capabilities were given back"


def _of_volumes(wanted: list[JsonObject], got: list[JsonObject]) -> Iterator[str]:
    expected = {volume["name"]: volume for volume in wanted}
    for volume in got:
        asked = expected.pop(volume["name"], None)
        if asked is None:
            yield f"volume {volume['name']} was added"
            continue
        kinds = {key for key, value in volume.items() if value is not None} - {"name"}
        if kinds != asked.keys() - {"name"}:
            yield f"volume {volume['name']} is {', '.join(sorted(kinds)) or 'empty'}"
        elif is_larger(volume["emptyDir"].get("sizeLimit"), asked["emptyDir"].get("sizeLimit")):
            yield f"the limit of volume {volume['name']} is {volume['emptyDir'].get('sizeLimit')}"
    yield from (f"volume {name} was removed" for name in expected)


def _of_containers(wanted: list[JsonObject], got: list[JsonObject]) -> Iterator[str]:
    expected = {container["name"]: container for container in wanted}
    for container in got:
        asked = expected.get(container["name"])
        if asked is None:
            yield f"container {container['name']} was added"
            continue
        yield from _of_fields("the container's ", asked, container, HARMLESS_OF_CONTAINER | CONTAINER_BY_PARTS)
        yield from _of_context("the container's ", asked["securityContext"], container.get("securityContext") or {})
        yield from _of_resources(asked["resources"], container.get("resources") or {})
        mounts = {(mount["name"], mount["mountPath"]) for mount in container.get("volumeMounts") or []}
        known = {(mount["name"], mount["mountPath"]) for mount in asked.get("volumeMounts", [])}
        yield from (f"{name} was mounted at {path}" for name, path in sorted(mounts - known))
        yield from (f"{name} is no longer mounted at {path}" for name, path in sorted(known - mounts))


def _of_resources(wanted: JsonObject, got: JsonObject) -> Iterator[str]:
    limits = got.get("limits") or {}
    for name, limit in wanted["limits"].items():
        if name not in limits:
            yield f"the limit on {name} was removed"
        elif is_larger(limits[name], limit):
            yield f"the limit on {name} is {limits[name]}"
    yield from (f"{name} was given" for name in sorted(limits.keys() - wanted["limits"].keys()))
    if got.get("claims"):
        yield "resource claims were added"


def is_larger(got: Any, asked: Any) -> bool:
    """Whether one quantity is more than another; none is without bound, and so is what cannot be read."""
    if asked is None:
        return False
    try:
        return got is None or quantity(got) > quantity(asked)
    except ValueError:
        return True


def _short(value: Any) -> str:
    words = str(value)
    return words if len(words) <= 60 else f"{words[:60]}..."
