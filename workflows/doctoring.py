"""`doctor`: what would make a run fail on the cluster. `explain RUN`: why one did. Each trouble by its name.

Exit code 0 when nothing is found, 78 when a trouble stays until somebody acts, 75 when all of them may pass.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from agentic.cluster.access import Rule
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.doctor.checks import ALL
from agentic.cluster.doctor.evidence import SILENT_SECONDS, gather_evidence, judge_silence
from agentic.cluster.doctor.examining import NO_ANSWER, Checked, Report, examine
from agentic.cluster.errors import ApiUnavailableError, CredentialsError
from agentic.cluster.resources import EVENTS, PODS, WORKFLOWS, JsonObject, name_of, uid_of
from agentic.cluster.sweep import STEP_OF
from agentic.cluster.troubles import Evidence, Trouble, find_troubles, grouped, make_trouble
from agentic.sandbox.settings import KubeSandbox
from steps import failures, needs, run_troubles
from workflows import verbs_local
from workflows.argo.nodes import argo_nodes, attempts_of, steps_of
from workflows.argo.on_volume import Volume
from workflows.argo.packing import unpacked
from workflows.argo.retrying import pod_name
from workflows.errors import CommandError
from workflows.request import Request
from workflows.saying import say, write
from workflows.settings import Settings
from workflows.submission import QUICK, unreachable
from workflows.verbs import load, workspace

OF_RUN = re.compile(r"(retry |logs |runs/)RUN\b")
"""Where the catalogue's remedies stand for the run."""

RULES: tuple[Rule, ...] = (
    Rule(WORKFLOWS.group, (WORKFLOWS.plural,), ("create", "get", "list", "watch", "patch", "delete")),
    Rule(PODS.group, (PODS.plural,), ("get", "list", "watch", "delete")),
    Rule(PODS.group, ("pods/log",), ("get",)),
    Rule(EVENTS.group, (EVENTS.plural,), ("list",)),
)
"""What whoever submits, watches and retries has to be allowed."""


def doctor(request: Request) -> int:
    """Look at everything, say each trouble with its remedy."""
    if request.words:
        raise CommandError(f"'{request.words[0]}' is no setting: write section.key=value, such as train.steps=4")
    report = asyncio.run(_examine(load(request), is_told=not request.json))
    if request.json:
        _print_json(report.troubles, report.skipped)
    else:
        _say_troubles(report.troubles, "nothing is in the way")
    return exit_code(report.troubles)


async def _examine(settings: Settings, *, is_told: bool) -> Report:
    async with _connected(settings) as client:
        kinds = needs.sandbox_kinds(settings.sandbox, client)
        facts = needs.facts_of(settings, [rule.body for rule in RULES], kinds, _models())
        facts = replace(facts, makes_what_lacks=True)
        return await examine(client, facts, ALL, _tell if is_told else lambda checked: None)


def _models() -> Path | None:
    folder = workspace() / "models"
    return folder if folder.is_dir() else None


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[KubeClient]:
    """Whatever the cluster lacks: that is what is looked for."""
    async with KubeClient(LoadedCredentials(), QUICK, namespace=settings.cluster.namespace) as client:
        yield client


def _tell(checked: Checked) -> None:
    if checked.skipped == NO_ANSWER:
        return
    if checked.skipped:
        say(f"  ?  {checked.name}: not looked at: {checked.skipped}")
    elif checked.troubles:
        say(f"  x  {checked.name}: {len(checked.troubles)} found")
    else:
        say(f"  ok {checked.name}")


def explain(request: Request) -> int:
    """Say why a run failed, here or on the cluster."""
    run_id = request.require_run()
    if verbs_local.is_meant(request, run_id):
        troubles = run_troubles.find_run_troubles(verbs_local.run_dir(run_id))
    else:
        troubles = asyncio.run(_explain(load(request), run_id, request.settings))
    if request.json:
        _print_json(grouped(troubles), {})
    else:
        named = [
            replace(trouble, remedy=OF_RUN.sub(rf"\g<1>{run_id}", trouble.remedy)) for trouble in grouped(troubles)
        ]
        _say_troubles(named, f"run {run_id} shows no trouble that has a name")
    return exit_code(troubles)


async def _explain(settings: Settings, run_id: str, changes: Sequence[str]) -> list[Trouble]:
    boxes = settings.sandbox.namespace if isinstance(settings.sandbox, KubeSandbox) else None
    async with _connected(settings) as client:
        try:
            evidence = about_newest(await gather_evidence(client, settings.cluster, run_id, boxes))
        except (ApiUnavailableError, CredentialsError) as error:
            raise unreachable(error) from error
        if not (evidence.pods or evidence.objects):
            raise CommandError(
                f"there is no run {run_id} in namespace {settings.cluster.namespace}, nor in {workspace()}: "
                "name the namespace by cluster.namespace"
            )
        objects = evidence.objects
        from_volume = Volume(client, run_id, objects, changes)
        logs = {**evidence.logs, **await from_volume.logs(evidence.logs)}
        known = Evidence(evidence.pods, evidence.events, objects, logs, with_past=True)
        now = time.time()
        silent, rollouts = judge_silence(objects, now), await from_volume.rollouts()
    waiting = [one for body in objects if body["kind"] == WORKFLOWS.kind for one in asleep(body, evidence.pods, now)]
    return [*find_troubles(known), *silent, *waiting, *run_troubles.judge_rollouts(rollouts)]


def about_newest(evidence: Evidence) -> Evidence:
    """Without earlier attempts at the run, the failures of steps that succeeded when they were tried again, and the
    waits of pods that got a node: they are no reason for how it stands. Pure."""
    made = [body for body in evidence.objects if body["kind"] == WORKFLOWS.kind]
    if not made:
        return evidence
    *earlier, newest = sorted(made, key=lambda body: str(body["metadata"].get("creationTimestamp")))
    newest = _last_words_first(unpacked(newest))
    well = {name for name, step in steps_of(newest).items() if step.get("phase") == "Succeeded"}
    overcome = {pod_name(newest, attempt) for name in well for attempt in attempts_of(newest, steps_of(newest)[name])}
    names = {name_of(body) for body in earlier}
    pods = [
        pod
        for pod in evidence.pods
        if name_of(pod) not in overcome and (pod["metadata"].get("labels") or {}).get(STEP_OF) not in names
    ]
    placed = _placed(newest, pods, evidence.events)
    out = names | ({name_of(pod) for pod in evidence.pods} - {name_of(pod) for pod in pods}) | overcome
    return Evidence(
        pods=pods,
        events=[
            event
            for event in evidence.events
            if event["involvedObject"].get("name") not in out
            and not (event.get("reason") == "FailedScheduling" and _same(event) in placed)
        ],
        objects=[newest, *(body for body in evidence.objects if body["kind"] != WORKFLOWS.kind)],
        logs={name: text for name, text in evidence.logs.items() if name not in well},
    )


def _placed(newest: JsonObject, pods: Sequence[JsonObject], events: Sequence[JsonObject]) -> set[tuple[str, str]]:
    """Pods that got a node, as name and uid: by themselves, and those that are gone by what the scheduler said, or by
    what the Workflow knows of where they were."""
    placed = [pod for pod in pods if (pod.get("spec") or {}).get("nodeName")]
    there = {(name_of(pod), uid) for pod in placed for uid in (uid_of(pod), "")}
    said = {_same(event) for event in events if event.get("reason") == "Scheduled"}
    nodes = argo_nodes(newest).values()
    ran = {pod_name(newest, node) for node in nodes if node["type"] == "Pod" and node.get("hostNodeName")}
    present = {name_of(pod) for pod in pods}
    gone = {_same(event) for event in events if event["involvedObject"].get("name") in ran - present}
    return there | said | gone


def _same(event: JsonObject) -> tuple[str, str]:
    """Which object it is about: a name may have been used again."""
    about = event["involvedObject"]
    return str(about.get("name", "")), str(about.get("uid", ""))


def asleep(workflow: JsonObject, pods: Sequence[JsonObject], now_seconds: float) -> list[Trouble]:
    """Steps that wait for a pod that is nowhere. After `argo retry` the controller may take the pod that was deleted,
    and is still ending, for the new one; when that has gone, nothing tells it so (seen with 4.0.5). Pure."""
    there, name = {name_of(pod) for pod in pods}, name_of(workflow)
    where = f"-n {workflow['metadata'].get('namespace', 'default')}"
    wake = f"kubectl annotate {where} workflow {name} agentic-rl/woken={now_seconds:.0f} --overwrite"
    return [
        make_trouble(
            "controller-silent",
            f"workflow {name}",
            f"{node['displayName']} has waited for {now_seconds - since:.0f} s for a pod that is not there",
            remedy=f"Argo's controller looks at it every 20 minutes, and at once after {wake}",
        )
        for node in argo_nodes(workflow).values()
        if (node["type"], node["phase"]) == ("Pod", "Pending")
        and node.get("startedAt")
        and not node.get("synchronizationStatus")
        and pod_name(workflow, node) not in there
        and now_seconds - (since := datetime.fromisoformat(str(node["startedAt"])).timestamp()) > SILENT_SECONDS
    ]


def _last_words_first(workflow: JsonObject) -> JsonObject:
    """Of several attempts with the same kind of trouble the first that is seen is told: the last attempt's."""
    status = workflow.get("status") or {}
    nodes = sorted(
        (status.get("nodes") or {}).items(), key=lambda one: str(one[1].get("startedAt") or ""), reverse=True
    )
    return {**workflow, "status": {**status, "nodes": dict(nodes)}} if nodes else workflow


def exit_code(troubles: Sequence[Trouble]) -> int:
    if not troubles:
        return 0
    return failures.TRANSIENT if all(trouble.transient for trouble in troubles) else failures.PERMANENT


def _say_troubles(troubles: Sequence[Trouble], otherwise: str) -> None:
    for trouble in troubles:
        say(f"{trouble.name}: {trouble.where}: {trouble.message}")
        say(f"    -> {trouble.remedy}")
    if not troubles:
        say(otherwise)


def _print_json(troubles: Sequence[Trouble], skipped: dict[str, str]) -> None:
    found: dict[str, Any] = {"troubles": [asdict(trouble) for trouble in troubles], "skipped": skipped}
    write(json.dumps(found, indent=2) + "\n")
