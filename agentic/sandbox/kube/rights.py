"""The rights that a provider's account needs, and nothing more: one namespace, no secrets, nothing of the cluster's.

Whoever may create pods may mount any Secret of the namespace into one, so that only the provider that makes pods itself
has that right. A test records what the contract uses and compares.
"""

from agentic.cluster.resources import DAEMON_SETS, EVENTS, JOBS, NETWORK_POLICIES, PODS, JsonObject
from agentic.sandbox.settings import AgentSandbox, KruiseSandbox, KubeSandbox

MAKE = ("create", "get", "delete")
"""With `get`, since a create whose answer was lost is recognised by looking."""
FOLLOW = ("list", "watch")
SWEEP = ("list", "delete")
CHANGE = ("patch",)


def sandbox_rules(settings: KubeSandbox) -> list[JsonObject]:
    """The rules of a Role."""
    return [
        *_of_provider(settings),
        _rule(PODS.group, f"{PODS.plural}/exec", "get", "create"),
        _rule(EVENTS.group, EVENTS.plural, "list"),
        _rule(JOBS.group, JOBS.plural, "list", *MAKE, *CHANGE),
        _rule(NETWORK_POLICIES.group, NETWORK_POLICIES.plural, "create", *SWEEP, *CHANGE),
        _rule(DAEMON_SETS.group, DAEMON_SETS.plural, "list", *MAKE),
    ]


def _of_provider(settings: KubeSandbox) -> list[JsonObject]:
    """What differs: who makes pods, and of what."""
    match settings:
        case KruiseSandbox():
            group = settings.api_group
            return [
                _rule(PODS.group, PODS.plural, *FOLLOW),
                _rule(group, "sandboxclaims", *MAKE, *FOLLOW),
                _rule(group, "sandboxes", *SWEEP, *CHANGE),
                _rule(group, "sandboxsets", "list", *MAKE, *CHANGE),
                _rule(group, "sandboxsets/scale", *CHANGE),
            ]
        case AgentSandbox():
            group = "extensions.agents.x-k8s.io"
            return [
                _rule(PODS.group, PODS.plural, *FOLLOW),
                _rule("agents.x-k8s.io", "sandboxes", "get"),
                _rule(group, "sandboxclaims", *MAKE, *FOLLOW, *CHANGE),
                _rule(group, "sandboxwarmpools", "list", *MAKE, *CHANGE),
                _rule(group, "sandboxtemplates", "list", *MAKE, *CHANGE),
                _rule(group, "sandboxwarmpools/scale", *CHANGE),
            ]
        case _:
            return [_rule(PODS.group, PODS.plural, *MAKE, *FOLLOW)]


def _rule(group: str, plural: str, *verbs: str) -> JsonObject:
    return {"apiGroups": [group], "resources": [plural], "verbs": sorted(verbs)}
