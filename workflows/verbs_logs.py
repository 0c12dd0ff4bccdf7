"""`logs` of a run on a cluster: of pods while they are there, of the others what lies on the volume, each part once."""

import asyncio
import os
from collections.abc import Mapping, Sequence

from agentic.cluster.errors import InvalidObjectError, NotFoundError
from agentic.cluster.labels import selector_of_run
from agentic.cluster.resources import JsonObject, name_of
from workflows.argo.api import ENDED
from workflows.argo.attempts import recorded_settings
from workflows.argo.nodes import attempts_of, is_over, is_part, steps_of
from workflows.argo.retrying import pod_name
from workflows.argo.volume import UnreadableError, read_files
from workflows.request import Request
from workflows.saying import write_all
from workflows.submission import Connection, connected
from workflows.verbs import load

LOOK_SECONDS = 1.0
"""Between two looks at a pod that has not begun."""


async def logs(request: Request, run_id: str, step: str) -> int:
    """Print what a step has printed; with `--follow` from when it begins until it ends."""
    settings = load(request).cluster
    async with connected(settings, os.environ) as connection:
        found = await connection.workflows.list(selector_of_run(run_id))
        parts = await _parts(connection, found[-1], step, follow=request.follow) if found else {}
        gone: list[str] = []
        for part, pod in parts.items():
            name = name_of(found[-1])
            was_there = _follow_part(connection, name, part) if request.follow else _print_pod(connection, name, pod)
            gone += [] if await was_there else [part]
        if gone or not parts:
            kube = connection.require_kube(f"the log of {step}, whose pods are gone,")
            cluster = recorded_settings(found[-1], request.settings).cluster if found else settings
            await write_all(read_files(kube, cluster, run_id, _patterns(step, gone)))
    return 0


def _patterns(step: str, gone: Sequence[str]) -> list[str]:
    """Where the logs of these parts lie, or of whatever parts the step had."""
    return [f"logs/{part}.log" for part in gone] or [f"logs/{step}.log", f"logs/{step}-[0-9]*.log"]


async def _parts(connection: Connection, workflow: JsonObject, step: str, *, follow: bool) -> Mapping[str, str]:
    """The pods of a step's last attempts by the names of its parts, of which most steps have one: themselves."""
    parts = pods_of(workflow, step)
    if parts or not follow:
        return parts
    async for seen in connection.workflows.follow(name_of(workflow)):
        if parts := pods_of(seen, step):
            break
    return parts


def pods_of(workflow: JsonObject, step: str) -> dict[str, str]:
    """Part -> pod of its last attempt, in order. Pure."""
    steps = steps_of(workflow)
    names = sorted((name for name in steps if name == step or is_part(name, step)), key=lambda name: (len(name), name))
    last = {name: attempts_of(workflow, steps[name])[-1:] for name in names}
    return {name: pod_name(workflow, attempts[0]) for name, attempts in last.items() if attempts}


async def _follow_part(connection: Connection, name: str, part: str) -> bool:
    """Print its last attempt and those that come after, until it has ended; whether any pod was still there."""
    printed: dict[str, bool] = {}
    while True:
        workflow = await connection.workflows.get(name)
        pod = pods_of(workflow, part).get(part)
        if pod is not None and pod not in printed:
            printed[pod] = await _print_pod(connection, name, pod, follow=True)
        elif is_over(workflow) or steps_of(workflow)[part].get("phase") in ENDED:
            return any(printed.values())
        else:
            await asyncio.sleep(LOOK_SECONDS)


async def _print_pod(connection: Connection, workflow: str, pod: str, *, follow: bool = False) -> bool:
    """Whether it was still there."""
    while True:
        try:
            await write_all(connection.workflows.log(workflow, pod, follow=follow))
        except NotFoundError:
            return False
        except InvalidObjectError as error:  # it has no container yet that could have printed
            if not follow or is_over(await connection.workflows.get(workflow)):
                raise UnreadableError(f"pod {pod} has not begun: {error}") from error
            await asyncio.sleep(LOOK_SECONDS)
        else:
            return True
