"""Compiled workflows in miniature, and an executor that plays scripted attempts instead of starting processes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workflows.local.scheduler import Attempt, AttemptResult

type Play = Callable[[Attempt], AttemptResult]

RETRY = {
    "limit": "3",
    "retryPolicy": "Always",
    "expression": "lastRetry.status == 'Error' || asInt(lastRetry.exitCode) in [64, 65, 75, 137, 143]",
    "backoff": {"duration": "0"},
}


def leaf(name: str, command: str = "true", **more: Any) -> dict[str, Any]:
    """A template that runs a shell command."""
    inputs = more.pop("inputs", ())
    outputs = more.pop("outputs", ())
    return {
        "name": name,
        "container": {"image": "none", "command": ["sh", "-c"], "args": [command], **more.pop("container", {})},
        "inputs": {"parameters": [{"name": value} if isinstance(value, str) else value for value in inputs]},
        "outputs": {"parameters": [{"name": value, "valueFrom": {"path": f"/out/{value}"}} for value in outputs]},
        **more,
    }


def task(name: str, template: str | None = None, **more: Any) -> dict[str, Any]:
    """A node of the DAG, named like its template unless told otherwise; `arguments` as a mapping."""
    arguments: Mapping[str, str] = more.pop("arguments", {})
    given = {"arguments": {"parameters": [{"name": key, "value": value} for key, value in arguments.items()]}}
    return {"name": name, "template": template or name, **(given if arguments else {}), **more}


def workflow(
    tasks: Sequence[Mapping[str, Any]],
    leaves: Sequence[Mapping[str, Any]],
    dag: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A Workflow whose entrypoint is a DAG of the tasks."""
    parameters: Mapping[str, str] = spec.pop("parameters", {})
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "small"},
        "spec": {
            "entrypoint": "main",
            "arguments": {"parameters": [{"name": key, "value": value} for key, value in parameters.items()]},
            "templates": [*leaves, {"name": "main", "dag": {"tasks": list(tasks), **(dag or {})}}],
            **spec,
        },
    }


SUCCEEDED = AttemptResult("Succeeded", 0)


def failed(exit_code: int) -> AttemptResult:
    """A command that ended with this code."""
    return AttemptResult("Failed", exit_code, f"exit code {exit_code}")


class ScriptedExecutor:
    """Fakes the execution of commands: each template has a list of results, played in order, the last one for ever."""

    def __init__(self, plays: Mapping[str, Sequence[AttemptResult | Play]] | None = None) -> None:
        self.plays = plays or {}
        self.attempts: list[Attempt] = []
        self.running = 0
        self.most_running = 0

    async def execute(self, attempt: Attempt) -> AttemptResult:
        self.attempts.append(attempt)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        played = self.plays.get(attempt.template.name, [SUCCEEDED])
        result = played[min(attempt.number, len(played)) - 1]
        return result if isinstance(result, AttemptResult) else result(attempt)

    def order(self) -> list[str]:
        """Nodes in the order in which their attempts began."""
        return [attempt.node for attempt in self.attempts]
