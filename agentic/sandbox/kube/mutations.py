"""Whether the cluster's admission left a sandbox's pod as isolated as it was asked for. Pure.

Mutating webhooks add what their owners want everywhere: sidecars, service-account tokens, host paths. What weakens
isolation is found here and named; what does not (labels, tolerations, a mirror of the image's registry) is let be.
"""

from collections.abc import Iterator

from agentic.cluster.resources import JsonObject
from agentic.sandbox.errors import SandboxSetupError

HOST_FLAGS = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")


def require_isolated(name: str, wanted: JsonObject, got: JsonObject) -> None:
    """Raises SandboxSetupError when a pod's spec is weaker than was asked for."""
    weakened = find_weakened(wanted, got)
    if weakened:
        raise SandboxSetupError(
            f"the cluster's admission weakened sandbox {name}: {', '.join(weakened)}: exempt its namespace from that"
        )


def find_weakened(wanted: JsonObject, got: JsonObject) -> list[str]:
    """What of a pod's spec is weaker than was asked for, each in a few words; empty when nothing is."""
    return [*_of_pod(wanted, got), *_of_containers(wanted, got)]


def _of_pod(wanted: JsonObject, got: JsonObject) -> Iterator[str]:
    yield from (f"{flag} was set" for flag in HOST_FLAGS if got.get(flag))
    if got.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken was set"
    if got.get("runtimeClassName") != wanted.get("runtimeClassName") and wanted.get("runtimeClassName"):
        yield f"runtimeClassName is {got.get('runtimeClassName')}"
    if wanted.get("activeDeadlineSeconds") and not got.get("activeDeadlineSeconds"):
        yield "activeDeadlineSeconds was removed"
    known = {volume["name"] for volume in wanted.get("volumes", [])}
    for volume in got.get("volumes", []):
        if volume["name"] not in known and set(volume) & {"hostPath", "projected", "secret"}:
            yield f"volume {volume['name']} was added"


def _of_containers(wanted: JsonObject, got: JsonObject) -> Iterator[str]:
    expected = {container["name"]: container for container in wanted["containers"]}
    for container in [*got.get("initContainers", []), *got["containers"]]:
        asked = expected.get(container["name"])
        if asked is None:
            yield f"container {container['name']} was added"
            continue
        yield from _of_container(asked, container)


def _of_container(wanted: JsonObject, got: JsonObject) -> Iterator[str]:
    asked, context = wanted["securityContext"], got.get("securityContext", {})
    if context.get("privileged"):
        yield "the container became privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation was set"
    capabilities = context.get("capabilities", {})
    allowed = set(asked["capabilities"].get("add", []))
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - allowed:
        yield "capabilities were given back"
    if asked.get("readOnlyRootFilesystem") and not context.get("readOnlyRootFilesystem"):
        yield "the root file system became writable"
    limits = got.get("resources", {}).get("limits", {})
    yield from (f"the limit on {name} was removed" for name in wanted["resources"]["limits"] if name not in limits)
