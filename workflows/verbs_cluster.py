"""What the verbs of the command line do to runs on a cluster, by kubectl access or through an Argo server.

A run may have several Workflows, and each verb is about the newest. Interrupting a verb that watches ends the watching;
the run goes on.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress

from rich.console import Console

from agentic.cluster.errors import NotFoundError, ObjectEndingError
from agentic.cluster.labels import PART, PART_LABEL, RUN_LABEL
from agentic.cluster.resources import JsonObject, name_of
from workflows.argo.api import GoneError
from workflows.argo.attempts import attempts_of_run, next_attempt, recorded_settings, require_step
from workflows.argo.following import exit_code, follow
from workflows.argo.nodes import is_over, nodes_of, output_of, phase_of, steps_of
from workflows.argo.volume import read_files
from workflows.display import Board, describe
from workflows.errors import CommandError, SettingsError
from workflows.request import Request
from workflows.saying import say, write_all
from workflows.settings import Settings
from workflows.submission import Connection, connected, create
from workflows.verbs import load

ENDING_SECONDS = 600.0
"""How long `cleanup` lets a run that it stopped end by itself, its exit handler included."""

GONE_SECONDS = 300.0
"""How long what `cleanup` has removed may take to be gone, the grace of Ray's pods included."""


def _connected(request: Request) -> AbstractAsyncContextManager[Connection]:
    return connected(load(request).cluster, os.environ)


async def create_and_say(request: Request, settings: Settings, document: JsonObject, run_id: str) -> int:
    """Create a Workflow and say where it is to be seen; with `--watch`, follow it."""
    async with connected(settings.cluster, os.environ) as connection:
        return await _create_and_say(request, connection, settings, document, run_id)


async def _create_and_say(
    request: Request, connection: Connection, settings: Settings, document: JsonObject, run_id: str
) -> int:
    for line in await create(connection, settings, document):
        say(line)
    return await _follow_if_asked(request, connection, name_of(document), run_id)


async def _follow_if_asked(request: Request, connection: Connection, name: str, run_id: str) -> int:
    if request.follow:
        return await _follow(request, connection, name, run_id)
    say(f"to watch it: {request.about('watch', run_id, connection.namespace)}")
    return 0


async def _follow(request: Request, connection: Connection, name: str, run_id: str) -> int:
    try:
        workflow = await follow(connection.workflows, name, Console(highlight=False))
    except asyncio.CancelledError:
        say(f"run {run_id} goes on; to end it: {request.about('stop', run_id, connection.namespace)}")
        raise
    _say_end(workflow, run_id, lambda verb: request.about(verb, run_id, connection.namespace))
    return exit_code(workflow)


def _say_end(workflow: JsonObject, run_id: str, command: Callable[[str], str]) -> None:
    steps = steps_of(workflow)
    if phase_of(workflow) != "Succeeded":
        reason = (workflow.get("status") or {}).get("message", "")
        say(f"run {run_id} {phase_of(workflow)}{f': {reason}' if reason else ''}")
        say(f"why: {command('explain')}; to try the failed steps again: {command('retry')}")
        return
    if "evaluate" in steps:
        found = {name: output_of(steps["evaluate"], name) for name in ("split", "before", "after", "checkpoint")}
        if found["split"]:
            say(f"{found['split']:<24} resolve rate {found['before']} -> {found['after']}")
            say(f"checkpoint  {found['checkpoint']} on the volume of runs")
    say(f"report      {command('report')} > report.html")


def watch(request: Request) -> int:
    """Follow a run until it ends."""
    return asyncio.run(_watch(request))


async def _watch(request: Request) -> int:
    run_id = request.require_run()
    async with _connected(request) as connection:
        newest = (await attempts_of_run(connection.workflows, run_id))[-1]
        say(f"workflow {name_of(newest)}: {connection.link(name_of(newest))}")
        return await _follow(request, connection, name_of(newest), run_id)


async def status(request: Request) -> int:
    """Say how far a run has come."""
    run_id = request.require_run()
    async with _connected(request) as connection:
        *earlier, newest = await attempts_of_run(connection.workflows, run_id)
        for workflow in earlier:
            say(f"workflow {name_of(workflow)}: {phase_of(workflow)}")
        board = Board(lambda node: node.message)
        for node in nodes_of(newest):
            say(describe(board, node))
        reason = (newest.get("status") or {}).get("message", "")
        say(f"workflow {name_of(newest)}: {phase_of(newest)}{f', {reason}' if reason else ''}")
        say(f"to be seen at {connection.link(name_of(newest))}")
    return 0


def retry(request: Request) -> int:
    """Run the failed steps of a run again, in the same Workflow."""
    return asyncio.run(_retry(request))


async def _retry(request: Request) -> int:
    run_id = request.require_run()
    async with _connected(request) as connection:
        newest = (await attempts_of_run(connection.workflows, run_id))[-1]
        name, phase = name_of(newest), phase_of(newest)
        if phase not in {"Failed", "Error"}:
            raise CommandError(
                f"{name} is {phase}: only failed steps are retried; to do some again: "
                f"{request.about('resume', run_id, connection.namespace, '--from', 'STEP')}"
            )
        failed = [node.name for node in nodes_of(newest) if node.phase in {"Failed", "Errored"}]
        await connection.workflows.retry(name)
        say(f"workflow {name} goes on with {', '.join(failed) or 'what is left'}: {connection.link(name)}")
        return await _follow_if_asked(request, connection, name, run_id)


def resume(request: Request) -> int:
    """Go on with a run from a step, in a new Workflow of the same run folder."""
    return asyncio.run(_resume(request))


async def _resume(request: Request) -> int:
    run_id, step = request.require_run(), require_step(request.start_from)
    async with _connected(request) as connection:
        before = await attempts_of_run(connection.workflows, run_id)
        document = next_attempt(before, run_id, step, request.settings)
        return await _create_and_say(request, connection, recorded_settings(document), document, run_id)


def stop(request: Request) -> int:
    """End a run's steps; its exit handler cleans up."""
    return asyncio.run(_stop(request))


async def _stop(request: Request) -> int:
    run_id = request.require_run()
    async with _connected(request) as connection:
        ending = await _end_all(connection, await attempts_of_run(connection.workflows, run_id))
        going_on = request.about("retry", run_id, connection.namespace)
        for name in ending:
            say(f"workflow {name} ends its steps and cleans up; to go on then: {going_on}")
        if not ending:
            say(f"run {run_id} has ended already")
    return 0


async def _end_all(connection: Connection, found: Sequence[JsonObject]) -> list[str]:
    """Tell those to end that go on, the newest first: one that waits for an earlier one would begin when that ends."""
    ending: list[str] = []
    for workflow in reversed(found):
        with suppress(NotFoundError):
            if not is_over(workflow):
                await connection.workflows.stop(name_of(workflow))
                ending.append(name_of(workflow))
    return ending


def cleanup(request: Request) -> int:
    """End a run and take everything of it out of the cluster; its folder stays."""
    return asyncio.run(_cleanup(request))


async def _cleanup(request: Request) -> int:
    from agentic.cluster.sweep import left, sweep

    run_id = request.require_run()
    async with _connected(request) as connection:
        kube = connection.require_kube("cleanup")
        found = await connection.workflows.list(f"{RUN_LABEL}={run_id}")
        ending = await _end_all(connection, found)
        for name in ending:
            say(f"workflow {name} is told to end")
        for name in ending:
            await _until_over(connection, name)
        places = _places(connection, found)
        removed = [line for place in places for line in await sweep(kube, place, run_id)]
        for workflow in found:
            if await connection.workflows.delete(name_of(workflow)):
                removed.append(f"Workflow {name_of(workflow)}")
        for line in removed:
            say(f"removed     {line}")
        remaining = [
            line
            for place in places
            for line in await left(kube, place, run_id, counts_steps=True, timeout_seconds=GONE_SECONDS)
        ]
    if remaining:
        raise ObjectEndingError(f"still there after {GONE_SECONDS:.0f} s: {', '.join(remaining)}: run cleanup again")
    say(f"run {run_id}: {len(removed)} objects removed; its folder on the volume stays")
    return 0


def _places(connection: Connection, found: Sequence[JsonObject]) -> list[str]:
    """The namespaces that the run has anything in: its sandboxes may have one of their own."""
    places = [connection.namespace]
    for workflow in found:
        with suppress(SettingsError):  # of a version with other settings
            places.append(getattr(recorded_settings(workflow).sandbox, "namespace", None) or connection.namespace)
    return list(dict.fromkeys(places))


async def _until_over(connection: Connection, name: str) -> None:
    """By its own exit handler where that works; what it leaves, the sweep finds."""
    with suppress(TimeoutError, GoneError, NotFoundError):
        async with asyncio.timeout(ENDING_SECONDS):
            async for _ in connection.workflows.follow(name):
                pass


async def report(request: Request, run_id: str) -> int:
    """Print the report's HTML from the volume."""
    settings = load(request).cluster
    async with connected(settings, os.environ) as connection:
        kube = connection.require_kube("the report, which lies on the volume,")
        found = await connection.workflows.list(f"{RUN_LABEL}={run_id}")
        cluster = recorded_settings(found[-1], request.settings).cluster if found else settings
        await write_all(read_files(kube, cluster, run_id, ["report.html"]))
    return 0


async def newest_run(request: Request) -> str:
    """The run of the cluster whose Workflow was made last.

    Raises:
        CommandError: there is none.
    """
    async with _connected(request) as connection:
        found = await connection.workflows.list(f"{PART_LABEL}={PART},{RUN_LABEL}")
        if not found:
            raise CommandError(f"there is no run in namespace {connection.namespace}: name one, or submit one first")
        return str(found[-1]["metadata"]["labels"][RUN_LABEL])
