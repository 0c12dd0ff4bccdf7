"""Checks of the API server itself: does it answer, by which clock, what may we do, what does it serve and accept."""

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from agentic.cluster.access import Rule, missing_rights
from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.examining import if_allowed, name_error
from agentic.cluster.doctor.facts import Facts, PodNeed
from agentic.cluster.errors import ForbiddenError, NotFoundError
from agentic.cluster.labels import shared_labels
from agentic.cluster.objects.claims import claims_of
from agentic.cluster.quantities import as_cpus
from agentic.cluster.resources import (
    CLAIMS,
    NODES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    JsonObject,
    Resource,
    name_of,
)
from agentic.cluster.settings import ClusterSettings
from agentic.cluster.troubles import Trouble, make_trouble
from agentic.errors import AgenticError

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", is_namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NODE_LEASES = "kube-node-lease"
ALL_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", is_namespaced=False)
"""Addressed without a namespace: those of all."""
SKEW_SECONDS = 30.0
"""Two clocks may differ by so much; a signed token's start is checked to the second, a lease's end to its renewal."""
RENEWED_SECONDS = 10.0
"""How often kubelet renews its node's lease."""
CONTROLLERS = {"workflow-controller": "Argo Workflows", "kuberay-operator": "KubeRay"}
PRODUCTS = {
    "argoproj.io": "Argo Workflows",
    "ray.io": "KubeRay (1.0 or newer)",
    "agents.kruise.io": "OpenKruise Agents",
    "apps.kruise.io": "OpenKruise Agents",
    "agents.x-k8s.io": "agent-sandbox",
    "extensions.agents.x-k8s.io": "agent-sandbox with its extensions",
    "kueue.x-k8s.io": "Kueue",
}


async def check_api(client: KubeClient, facts: Facts) -> list[Trouble]:
    """It answers, accepts us, and has the namespace."""
    try:
        await client.read("/version")
    except ForbiddenError:
        pass  # Closed to anonymous readers on some clusters; whoever is refused was answered.
    except AgenticError as error:
        return [name_error("the cluster", error)]
    try:
        await if_allowed(client.get(NAMESPACES, facts.cluster.namespace))
    except NotFoundError:
        where = f"namespace {facts.cluster.namespace}"
        remedy = f"kubectl create namespace {facts.cluster.namespace}, or correct cluster.namespace"
        return [make_trouble("namespace-missing", where, "it is not there", remedy=remedy)]
    return []


async def check_clocks(client: KubeClient, facts: Facts) -> list[Trouble]:
    """This machine's, and the nodes', against the API server's."""
    before = time.time()
    server = await client.server_seconds()
    apart = (before + time.time()) / 2 - server
    troubles = [_skew("this machine", apart)] if abs(apart) > SKEW_SECONDS else []
    leases = await if_allowed(client.list(LEASES, namespace=NODE_LEASES))
    nodes = await if_allowed(client.list(NODES))
    alive = {name_of(node) for node in nodes.items if is_ready(node)} if nodes else frozenset[str]()
    return [*troubles, *skews_of_nodes(leases.items if leases else (), server, alive)]


def is_ready(node: JsonObject) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any((one.get("type"), one.get("status")) == ("Ready", "True") for one in conditions)


def skews_of_nodes(leases: Sequence[JsonObject], server_seconds: float, alive: Collection[str]) -> Iterator[Trouble]:
    """By the time that each node's kubelet wrote into its lease, its own clock's. `alive` are nodes that the control
    plane hears of: it goes by when a lease changes, whatever time stands in it. Pure."""
    for lease in leases:
        renewed = (lease.get("spec") or {}).get("renewTime")
        if renewed is None:
            continue
        apart = datetime.fromisoformat(str(renewed)).timestamp() - server_seconds
        is_behind = apart < -(SKEW_SECONDS + RENEWED_SECONDS) and name_of(lease) in alive
        if is_behind or apart > SKEW_SECONDS:
            yield _skew(f"node {name_of(lease)}", apart)


def _skew(where: str, apart_seconds: float) -> Trouble:
    way = "ahead of" if apart_seconds > 0 else "behind"
    return make_trouble("clock-skew", where, f"its clock is {abs(apart_seconds):.0f} s {way} the API server's")


async def check_rights(client: KubeClient, facts: Facts) -> list[Trouble]:
    """Each verb on each kind, by the API server's own word."""
    rules = [*facts.rules, *(await _rules_to_make(client, facts) if facts.makes_what_lacks else ())]
    missing = await missing_rights(client, rules, namespace=facts.cluster.namespace)
    if not missing:
        return []
    return [make_trouble("right-missing", f"namespace {facts.cluster.namespace}", f"may not {', '.join(missing)}")]


async def _rules_to_make(client: KubeClient, facts: Facts) -> list[JsonObject]:
    """Of what submitting would make, as far as it is not there."""
    cluster, kinds = facts.cluster, [(SERVICE_ACCOUNTS, facts.cluster.service_account)]
    kinds += [(ROLES, cluster.service_account), (ROLE_BINDINGS, cluster.service_account)]
    kinds += [(CLAIMS, claim.claim) for claim in claims_of(cluster).values()]
    missing = []
    for kind, name in kinds:
        try:
            await if_allowed(client.get(kind, name, namespace=cluster.namespace))
        except NotFoundError:
            missing.append(kind)
    return [Rule(kind.group, (kind.plural,), ("create", "patch")).body for kind in dict.fromkeys(missing)]


async def check_kinds(client: KubeClient, facts: Facts) -> list[Trouble]:
    """What controllers have to bring, in the version that we write."""
    found = await asyncio.gather(*(_look_for(client, kind) for kind in facts.kinds))
    return [trouble for trouble in found if trouble is not None]


async def _look_for(client: KubeClient, kind: Resource) -> Trouble | None:
    where, product = f"{kind.kind} ({kind.api_version})", PRODUCTS.get(kind.group, "what serves it")
    try:
        served = await client.read(f"/apis/{kind.api_version}")
    except NotFoundError:
        versions = await _versions(client, kind.group)
        if not versions:
            return make_trouble("kind-missing", where, "the cluster does not serve it", remedy=f"install {product}")
        message = f"the cluster serves {kind.group} as {', '.join(versions)} only"
        return make_trouble("kind-missing", where, message, remedy=f"install a version of {product} that has it")
    if any(one["name"] == kind.plural for one in served.get("resources") or ()):
        return None
    message = f"{kind.api_version} is served without {kind.plural}"
    return make_trouble("kind-missing", where, message, remedy=f"install all of {product}")


async def _versions(client: KubeClient, group: str) -> list[str]:
    try:
        found = await client.read(f"/apis/{group}")
    except NotFoundError:
        return []
    return [str(one["version"]) for one in found.get("versions") or ()]


async def check_controllers(client: KubeClient, facts: Facts) -> list[Trouble]:
    """Those that run as Deployments, where we may see them; others show by what they leave undone."""
    found = await client.list(ALL_DEPLOYMENTS)
    return list(silent_controllers(found.items, facts.cluster))


def silent_controllers(deployments: Sequence[JsonObject], cluster: ClusterSettings) -> Iterator[Trouble]:
    """A product none of whose Deployments has a pod: others may have one of their own. BuildKit is each namespace's.
    Pure."""
    for word, product in CONTROLLERS.items():
        found = [one for one in deployments if word in name_of(one)]
        if found and not any(_available(one) for one in found):
            yield _silent(product, found[0])
    for one in deployments:
        is_ours = (one["metadata"].get("namespace"), name_of(one)) == (cluster.namespace, cluster.buildkit.name)
        if is_ours and not _available(one):
            yield _silent("BuildKit", one)


def _available(deployment: JsonObject) -> int:
    return int((deployment.get("status") or {}).get("availableReplicas") or 0)


def _silent(product: str, deployment: JsonObject) -> Trouble:
    name, namespace = name_of(deployment), deployment["metadata"].get("namespace")
    message = f"{product} has none of {deployment['spec'].get('replicas', 1)} pods available"
    remedy = f"kubectl -n {namespace} describe deployment {name}"
    return make_trouble("controller-silent", f"deployment {name} in {namespace}", message, remedy=remedy)


async def check_admission(client: KubeClient, facts: Facts) -> list[Trouble]:
    """What the API server says to pods such as the run's, without making them: quota, limits, policies, accounts."""
    account = await account_of(client, facts)
    found = await asyncio.gather(*(_refusal(client, facts, need, account) for need in facts.pods))
    return [trouble for trouble in found if trouble is not None]


async def account_of(client: KubeClient, facts: Facts) -> str:
    """The run's account, or the namespace's own as long as the run's is still ours to make."""
    name, namespace = facts.cluster.service_account, facts.cluster.namespace
    make = Rule(SERVICE_ACCOUNTS.group, (SERVICE_ACCOUNTS.plural,), ("create",))
    try:
        await if_allowed(client.get(SERVICE_ACCOUNTS, name, namespace=namespace))
    except NotFoundError:
        may_make = not await missing_rights(client, [make.body], namespace=namespace)
        return "default" if may_make else name
    return name


async def _refusal(client: KubeClient, facts: Facts, need: PodNeed, account: str) -> Trouble | None:
    home = facts.cluster.namespace
    namespace = need.namespace or home
    body = _pod(facts, need, account if namespace == home else "default")
    try:
        await client.create(PODS, body, namespace=namespace, dry_run=True)
    except ForbiddenError as error:
        if "may not create pods" in str(error):
            return None  # Controllers make them, by their own right.
        return name_error(need.name, error)
    except AgenticError as error:
        return name_error(need.name, error)
    return None


def _pod(facts: Facts, need: PodNeed, account: str) -> JsonObject:
    image = facts.cluster.steps_image
    share: Mapping[str, str] = {
        "cpu": as_cpus(need.cpus),
        "memory": str(int(need.memory_bytes)),
        **({facts.cluster.gpu_resource: str(need.gpus)} if need.gpus else {}),
    }
    spec: JsonObject = {
        "restartPolicy": "Never",
        "serviceAccountName": account,
        "containers": [{"name": "main", "image": image, "resources": {"requests": share, "limits": share}}],
    }
    if facts.cluster.priority_class is not None:
        spec["priorityClassName"] = facts.cluster.priority_class
    return {**PODS.head("agentic-rl-doctor", labels=shared_labels()), "spec": spec}
