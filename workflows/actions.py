"""Which function a verb is, and where a run is looked for: in this workspace, then on the cluster."""

import asyncio
import re
from collections.abc import Callable

from workflows import pipeline, verbs, verbs_local
from workflows.errors import ClusterUnreachableError, CommandError
from workflows.request import Request, checked_run
from workflows.saying import note

type Action = Callable[[Request], int]

LOCAL = "local"
"""The target that is this machine."""

LAUNCHERS = ("slurm", "skypilot")
"""Targets that start Ray on several machines, and this machine's workflow on the first of them."""


def action_of(verb: str, target: str | None = None) -> Action:
    """What a verb does."""
    if target in LAUNCHERS:
        return _launching(verb, target)
    makers: dict[str, Action] = {
        "submit": verbs.submit,
        LOCAL: verbs.run_local,
        "render": verbs.render,
        "plan": verbs.plan,
        "status": status,
        "logs": logs,
        "report": report,
    }
    return makers[verb] if verb in makers else _on_cluster(verb)


def _launching(verb: str, target: str) -> Action:
    from workflows import verbs_launchers

    actions: dict[str, Action] = {
        "submit": verbs_launchers.submit,
        "render": verbs_launchers.render,
        "plan": verbs_launchers.plan,
    }
    if target == "slurm":  # its runs have their folders in the workspace, like those of this machine
        actions |= {"status": status, "logs": logs, "report": report}
    if verb not in actions:
        raise CommandError(
            f"{verb} is no business of --target {target}: use {', '.join(actions)}, or the launcher's own"
        )
    return actions[verb]


def _on_cluster(verb: str) -> Action:
    from workflows import verbs_cluster

    cluster: dict[str, Action] = {
        "watch": verbs_cluster.watch,
        "retry": verbs_cluster.retry,
        "resume": verbs_cluster.resume,
        "stop": verbs_cluster.stop,
        "cleanup": verbs_cluster.cleanup,
    }
    if verb in cluster:
        return _refusing_local_runs(cluster[verb])
    from workflows import doctoring

    if verb == "doctor":
        return doctoring.doctor
    return lambda request: _elsewhere(request.require_run(), lambda: doctoring.explain(request))


def _refusing_local_runs(action: Action) -> Action:
    """A run of this workspace has other ways, which are named; `--target argo` insists."""

    def act(request: Request) -> int:
        run_id = request.require_run()
        if verbs_local.is_meant(request, run_id):
            raise CommandError(
                f"run {run_id} is on this machine: go on with it by python3 workflows/submit.py local --run-id "
                f"{run_id} and its other arguments, from a step with --start-from STEP; Ctrl-C ends it and cleans up. "
                "--target argo means the cluster"
            )
        return action(request)

    return act


def status(request: Request) -> int:
    """Say how far a run has come."""
    from workflows import verbs_cluster

    run_id = request.require_run()
    if verbs_local.is_meant(request, run_id):
        return verbs_local.status(run_id)
    return _elsewhere(run_id, lambda: asyncio.run(verbs_cluster.status(request)))


def report(request: Request) -> int:
    """Write or print a run's report."""
    from workflows import verbs_cluster

    run_id = request.require_run()
    if verbs_local.is_meant(request, run_id):
        return verbs_local.report(run_id)
    return _elsewhere(run_id, lambda: asyncio.run(verbs_cluster.report(request, run_id)))


def logs(request: Request) -> int:
    """Print what a step of a run has printed."""
    from workflows import verbs_logs

    run_id, step = _run_and_step(request)
    is_local = verbs_local.is_meant(request, run_id)
    if is_local:
        code = verbs_local.logs(run_id, step, follow=request.follow)
    else:
        code = _elsewhere(run_id, lambda: asyncio.run(verbs_logs.logs(request, run_id, step)))
    if len(request.words) == 1:
        note(f"this was run {run_id}, the newest one {'of this machine' if is_local else 'on the cluster'}")
    return code


def _elsewhere(run_id: str, act: Callable[[], int]) -> int:
    """On the cluster. When there is none, it is also told that the workspace does not have the run."""
    try:
        return act()
    except ClusterUnreachableError as error:
        try:
            verbs_local.run_dir(run_id)
        except CommandError as missing:
            raise CommandError(f"{missing}, and {error}") from error
        raise


def _run_and_step(request: Request) -> tuple[str, str]:
    """What `logs` names: a run and a step, or a step of the newest run."""
    if len(request.words) == 2:
        return checked_run(request.words[0]), _checked_step(request.words[1])
    if len(request.words) != 1 or not is_step(request.words[0]):
        raise CommandError("name the run and the step: python3 workflows/submit.py logs RUN STEP")
    newest = None if request.target == "argo" else verbs_local.newest_run()
    if newest is None:
        from workflows import verbs_cluster

        newest = asyncio.run(verbs_cluster.newest_run(request))
    return newest, request.words[0]


def _checked_step(word: str) -> str:
    if not is_step(word):
        names = ", ".join((*pipeline.STEPS, pipeline.EXIT_STEP))
        raise CommandError(f"there is no step {word}: use {names}, or one part such as {pipeline.FAN_OUT}-0")
    return word


def is_step(word: str) -> bool:
    """Whether a step, or one part of a fan-out, is called so."""
    return word in (*pipeline.STEPS, pipeline.EXIT_STEP) or re.fullmatch(rf"{pipeline.FAN_OUT}-\d+", word) is not None
