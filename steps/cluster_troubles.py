"""What preflight looks at from within its pod: the cluster by the pod's own account, the network from where it stands,
and one sandbox that is started and looks for the proxy's port."""

import asyncio
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.doctor.checks import READING
from agentic.cluster.doctor.examining import Checked, examine
from agentic.cluster.doctor.probing import judge_answers, targets_of
from agentic.cluster.doctor.reaching import reach_all
from agentic.cluster.objects.rights import pipeline_rules
from agentic.cluster.settings import KubeClientSettings
from agentic.cluster.troubles import Trouble, make_trouble
from agentic.errors import AgenticError, Problem
from agentic.sandbox.settings import AgentSandbox, KruiseSandbox, PodSandbox
from steps import needs

QUICK = KubeClientSettings(retry_seconds=20.0)
CHECKS = tuple(check for check in READING if check.name not in ("controllers", "nodes", "pods"))
"""What is wrong with others' nodes and pods is no reason to keep a run from starting."""
WAITED_FOR = frozenset(["larger-than-any-node"])
"""Told and no more: a cluster that grows on demand has no such node yet, and launch-cluster names it where it lasts."""

type PodsAsSandboxes = PodSandbox | KruiseSandbox | AgentSandbox
type OnChecked = Callable[[Checked], None]


async def find_cluster_troubles(settings: needs.Sections, models: Path, on_checked: OnChecked) -> list[Trouble]:
    """What the API server and the network say."""
    sandbox = settings.sandbox
    async with KubeClient(LoadedCredentials(), QUICK, namespace=settings.cluster.namespace) as client:
        kinds = needs.sandbox_kinds(sandbox, client)
        facts = needs.facts_of(settings, pipeline_rules(), kinds, models)
        report = await examine(client, facts, CHECKS, on_checked)
        try:
            targets = await targets_of(client, facts)
        except AgenticError:
            targets = list(facts.targets)  # That the API server does not answer is in the report.
    answers = await asyncio.to_thread(reach_all, [[target.kind, target.address] for target in targets])
    return [*report.troubles, *judge_answers(targets, answers)]


def tell(checked: Checked) -> None:
    """One line for each check, in the step's log."""
    said = f"not looked at: {checked.skipped}" if checked.skipped else f"{len(checked.troubles) or 'no'} trouble"
    sys.stdout.write(f"{checked.name}: {said}\n")


def is_in_the_way(trouble: Trouble) -> bool:
    """Whether the run cannot start. For what may pass, such as room that others hold, later steps wait."""
    return not trouble.transient and trouble.name not in WAITED_FOR


async def find_sandbox_problems(sandbox: PodsAsSandboxes, store_dir: Path, run_id: str) -> list[Problem]:
    """Whether a sandbox runs, and reaches the proxy's port and no other of its pod."""
    from agentic.sandbox.preflight import preflight

    problems = await preflight(sandbox, store_dir)
    if problems or sandbox.proxy_port is None:
        return problems
    return await _proxy_problems(sandbox, store_dir, run_id, sandbox.proxy_port)


async def _proxy_problems(sandbox: PodsAsSandboxes, store_dir: Path, run_id: str, port: int) -> list[Problem]:
    from agentic.sandbox.base import SandboxSpec
    from agentic.sandbox.images import base_image
    from agentic.sandbox.kube.probing import try_proxy_port
    from agentic.sandbox.providers import connect_cluster, make_provider, open_store

    store = open_store(store_dir, sandbox)
    provider, api = make_provider(sandbox, store), await connect_cluster(sandbox)
    try:
        spec = SandboxSpec(run_id, f"preflight-{uuid.uuid4().hex[:8]}", base_image(sandbox, store))
        tried = await provider.acquire(spec)
        is_kept, seen = await try_proxy_port(api, sandbox, port, tried)
        await tried.release()
    except AgenticError as error:
        return [Problem(f"the way from a sandbox to the proxy could not be tried: {error}", transient=True)]
    finally:
        await provider.close()
        await api.close()
    if is_kept is not False:
        return []
    trouble = make_trouble("proxy-unreachable", "sandbox -> proxy", seen)
    return [Problem(trouble.line, trouble.transient)]
