"""The rights that a provider's account needs, and nothing more: one namespace, no secrets, nothing of the cluster's."""

from agentic.cluster.resources import DAEMON_SETS, EVENTS, JOBS, NETWORK_POLICIES, PODS, JsonObject
from agentic.sandbox.settings import AgentSandbox, KruiseSandbox, KubeSandbox

SEE = ("get", "list", "watch")
MAKE = ("create", "delete")
CHANGE = ("patch",)


def sandbox_rules(settings: KubeSandbox) -> list[JsonObject]:
    """The rules of a Role."""
    rules = [
        _rule(PODS.group, [PODS.plural], *SEE, *MAKE),
        _rule(PODS.group, [f"{PODS.plural}/exec"], "get", "create"),
        _rule(EVENTS.group, [EVENTS.plural], "list"),
        _rule(JOBS.group, [JOBS.plural], "get", "list", *MAKE, *CHANGE),
        _rule(NETWORK_POLICIES.group, [NETWORK_POLICIES.plural], "get", "list", *MAKE, *CHANGE),
        _rule(DAEMON_SETS.group, [DAEMON_SETS.plural], "get", "list", *MAKE),
    ]
    match settings:
        case KruiseSandbox():
            kinds = ["sandboxes", "sandboxclaims", "sandboxsets"]
            rules.append(_rule(settings.api_group, kinds, *SEE, *MAKE, *CHANGE))
            rules.append(_rule(settings.api_group, ["sandboxsets/scale"], *CHANGE))
        case AgentSandbox():
            group = "extensions.agents.x-k8s.io"
            kinds = ["sandboxclaims", "sandboxwarmpools", "sandboxtemplates"]
            rules.append(_rule("agents.x-k8s.io", ["sandboxes"], "get"))
            rules.append(_rule(group, kinds, *SEE, *MAKE, *CHANGE))
            rules.append(_rule(group, ["sandboxwarmpools/scale"], *CHANGE))
    return rules


def _rule(group: str, resources: list[str], *verbs: str) -> JsonObject:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
