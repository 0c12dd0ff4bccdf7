"""What a cluster lacks for sandboxes, all of it at once, before the first one is asked for.

Asked are the rights of the account, the controllers' kinds, and the API server's own opinion of the objects that we
would make (a dry run: quota, admission, Pod Security, the namespace). Nothing is changed, and every finding is one line
that says what to do.
"""

from collections.abc import Iterator, Sequence

from agentic.cluster.access import account, missing_rights
from agentic.cluster.api import KubeApi
from agentic.cluster.errors import ForbiddenError, NotFoundError
from agentic.cluster.labels import PART, PART_LABEL
from agentic.cluster.resources import JOBS, NETWORK_POLICIES, PODS, JsonObject, Resource
from agentic.errors import AgenticError, PermanentError, Problem
from agentic.sandbox.kube.manifests import Resources, lease_job, network_policy, sandbox_pod
from agentic.sandbox.kube.names import object_name
from agentic.sandbox.kube.rights import sandbox_rules
from agentic.sandbox.settings import AgentSandbox, KruiseSandbox, KubeSandbox, PodSandbox

ACCOUNT = "agentic-sandboxes"
RUN_ID = "preflight"
UID = "00000000-0000-0000-0000-000000000000"


def sandbox_account(settings: KubeSandbox, namespace: str, name: str = ACCOUNT) -> list[JsonObject]:
    """The ServiceAccount, Role and RoleBinding that sandboxes of these settings need."""
    return account(name, sandbox_rules(settings), namespace, labels={PART_LABEL: PART})


async def check_cluster(api: KubeApi, settings: KubeSandbox, kinds: Sequence[Resource]) -> list[Problem]:
    """What stands in the way; `kinds` are those of the provider's source."""
    try:
        missing = await missing_rights(api, sandbox_rules(settings))
    except AgenticError as error:
        return [Problem(f"the cluster cannot be asked: {error}", not isinstance(error, PermanentError))]
    problems = [Problem(_say_missing(settings, api.namespace, missing))] if missing else []
    absent = [kind for kind in kinds if not await _is_served(api, kind)]
    if absent:
        problems.append(Problem(_say_absent(settings, absent)))
    for resource, body in _objects(settings):
        try:
            await api.create(resource, body, dry_run=True)
        except ForbiddenError as error:
            if not missing:
                problems.append(Problem(str(error)))
        except AgenticError as error:
            words = f"sandboxes would be refused in namespace {api.namespace}: {error}"
            problems.append(Problem(words, not isinstance(error, PermanentError)))
    return problems


def _say_missing(settings: KubeSandbox, namespace: str, missing: Sequence[str]) -> str:
    provider = getattr(settings, "provider", "pod")
    return (
        f"the account lacks rights in namespace {namespace}: {', '.join(missing)}: have an admin run "
        f"`python -m agentic.sandbox account --provider {provider} namespace={namespace} | kubectl apply -f -` and use "
        f"the account {ACCOUNT}"
    )


def _say_absent(settings: KubeSandbox, absent: Sequence[Resource]) -> str:
    name = {
        KruiseSandbox: "OpenKruise Agents (github.com/openkruise/agents)",
        AgentSandbox: "agent-sandbox with its extensions (github.com/kubernetes-sigs/agent-sandbox)",
    }.get(type(settings), "what serves them")
    kinds = ", ".join(f"{kind.kind} ({kind.api_version})" for kind in absent)
    return f"the cluster does not know {kinds}: install {name}, or set sandbox.provider=pod"


async def _is_served(api: KubeApi, kind: Resource) -> bool:
    try:
        await api.list(kind, labels=f"{PART_LABEL}=none")
    except NotFoundError:
        return False
    except AgenticError:
        return True
    return True


def _objects(settings: KubeSandbox) -> Iterator[tuple[Resource, JsonObject]]:
    """What every run makes, of a lease that nobody has. Pods are a controller's to make unless they are ours."""
    name = object_name(RUN_ID, UID)
    lease = {"metadata": {"name": name, "uid": UID}}
    yield JOBS, lease_job(settings, RUN_ID, name, "preflight", 0.0)
    yield NETWORK_POLICIES, network_policy(settings, RUN_ID, name, lease)
    if isinstance(settings, PodSandbox):
        resources = Resources(settings.memory_mb, settings.cpus)
        yield PODS, sandbox_pod(settings, name, settings.base_image, resources, {}, lease)
