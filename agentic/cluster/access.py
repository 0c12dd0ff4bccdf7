"""Accounts and their rights: one namespace, the verbs that are used, nothing of the cluster's.

A Rule is what a Role holds; `account` is the ServiceAccount, Role and RoleBinding that give an account its rules. What
the present account lacks the API server tells (`missing_rights`), so that a run can say so in its first second and not
in its third hour.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentic.cluster.api import KubeApi
from agentic.cluster.resources import ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, JsonObject, Resource

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]

REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", is_namespaced=False
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Some verbs on some kinds of one API group."""

    group: str
    resources: tuple[str, ...]
    """Plurals; a subresource such as `pods/exec` is one of its own."""
    verbs: tuple[Verb, ...]

    @property
    def body(self) -> JsonObject:
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}

    def rights(self) -> Iterator[JsonObject]:
        """One by one, as an access review asks for them."""
        for name in self.resources:
            plural, _, subresource = name.partition("/")
            for verb in self.verbs:
                right = {"group": self.group, "resource": plural, "verb": verb}
                yield {**right, "subresource": subresource} if subresource else right


def rules_of(bodies: Sequence[JsonObject]) -> Iterator[Rule]:
    """From a Role's rules."""
    for body in bodies:
        for group in body["apiGroups"]:
            yield Rule(group, tuple(body["resources"]), tuple(body["verbs"]))


def account(
    name: str, rules: Sequence[JsonObject], namespace: str, *, mounts_token: bool = False, **metadata: object
) -> list[JsonObject]:
    """A ServiceAccount, its Role and what binds them. Without `mounts_token` its token is in no pod that does not ask
    for it."""
    metadata = {"namespace": namespace, **metadata}
    return [
        {**SERVICE_ACCOUNTS.head(name, **metadata), "automountServiceAccountToken": mounts_token},
        *role(name, rules, (name, namespace), **metadata),
    ]


def role(name: str, rules: Sequence[JsonObject], account: tuple[str, str], **metadata: object) -> list[JsonObject]:
    """A Role, and what gives it to an account, named by name and namespace."""
    subject = {"kind": SERVICE_ACCOUNTS.kind, "name": account[0], "namespace": account[1]}
    reference = {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": name}
    return [
        {**ROLES.head(name, **metadata), "rules": list(rules)},
        {**ROLE_BINDINGS.head(name, **metadata), "subjects": [subject], "roleRef": reference},
    ]


def lacking(needed: Sequence[JsonObject], given: Sequence[JsonObject]) -> list[str]:
    """What rules that somebody else wrote do not allow of the needed ones, such as `create pods/exec`, sorted."""
    has = {
        (group, resource, verb)
        for body in given
        for group in body.get("apiGroups") or ()
        for resource in body.get("resources") or ()
        for verb in body.get("verbs") or ()
        if not body.get("resourceNames")
    }

    def is_given(rule: Rule, resource: str, verb: str) -> bool:
        groups, resources, verbs = {rule.group, "*"}, {resource, "*"}, {verb, "*"}
        return any(group in groups and name in resources and one in verbs for group, name, one in has)

    rules = list(rules_of(needed))
    asked = [(rule, resource, verb) for rule in rules for resource in rule.resources for verb in rule.verbs]
    return sorted(
        {f"{verb} {name}{_dotted(rule.group)}" for rule, name, verb in asked if not is_given(rule, name, verb)}
    )


def _dotted(group: str) -> str:
    return f".{group}" if group else ""


async def missing_rights(api: KubeApi, rules: Sequence[JsonObject], *, namespace: str | None = None) -> list[str]:
    """What the present account may not do of what the rules name, such as `create pods/exec`, sorted."""
    rights = [right for rule in rules_of(rules) for right in rule.rights()]
    allowed = await asyncio.gather(*(_is_allowed(api, right, namespace or api.namespace) for right in rights))
    return sorted(_words(right) for right, is_allowed in zip(rights, allowed, strict=True) if not is_allowed)


async def _is_allowed(api: KubeApi, right: JsonObject, namespace: str) -> bool:
    body = {
        "apiVersion": REVIEWS.api_version,
        "kind": REVIEWS.kind,
        "spec": {"resourceAttributes": {**right, "namespace": namespace}},
    }
    return bool((await api.create(REVIEWS, body))["status"]["allowed"])


def _words(right: JsonObject) -> str:
    part = f"/{right['subresource']}" if "subresource" in right else ""
    return f"{right['verb']} {right['resource']}{part}{_dotted(right['group'])}"
