"""A run on a cluster as it goes on, on the display of local runs, from the Workflow object alone."""

import asyncio
from contextlib import suppress

from rich.console import Console

from agentic.cluster.resources import JsonObject
from steps import failures
from workflows.argo.api import Workflows
from workflows.argo.nodes import nodes_of, phase_of
from workflows.display import Board, Screen
from workflows.local.document import RetryStrategy
from workflows.local.scheduler import Node, is_worth_retrying


async def follow(workflows: Workflows, name: str, console: Console) -> JsonObject:
    """Show the Workflow until it ends; the object then.

    Raises:
        NotFoundError: there is none.
        GoneError: it was deleted meanwhile.
    """
    screen = Screen(Board(_progress), console)
    refreshing = asyncio.create_task(screen.refresh())
    workflow: JsonObject = {}
    waiting = ""
    try:
        async for workflow in workflows.follow(name):
            before, waiting = waiting, _waits_for(workflow)
            if waiting and waiting != before:
                console.print(f"{name} waits: {waiting}", markup=False, highlight=False, soft_wrap=True)
            for node in nodes_of(workflow):
                _show(node, screen)
    finally:
        refreshing.cancel()
        with suppress(asyncio.CancelledError):
            await refreshing
        screen.close()
    return workflow


def _waits_for(workflow: JsonObject) -> str:
    """What keeps it from beginning, such as an earlier Workflow of its run; empty once it has begun."""
    message = str((workflow.get("status") or {}).get("message") or "")
    return " ".join(message.split()) if phase_of(workflow) == "Pending" else ""


def _progress(node: Node) -> str:
    """A running step's message is its progress: the object holds nothing else of it."""
    return node.message if node.phase == "Running" else ""


def _show(node: Node, screen: Screen) -> None:
    before = screen.board.nodes.get(node.name)
    screen.board.nodes[node.name] = node
    if before is None or _said(before) != _said(node):
        screen.observe(node)


def _said(node: Node) -> tuple[str, int, str]:
    """What of a node is worth a line when it changes; progress has its own."""
    return node.phase, node.attempt, node.message if node.phase != "Running" else ""


def exit_code(workflow: JsonObject) -> int:
    """0, or 75 when trying the failed steps again may help, or 78 when it cannot, as the steps' own retries see it.

    As for a local run, a failure without an exit code is a passed deadline, or a group whose members speak for it. A
    Workflow that is in error before any step has failed is one that Argo cannot run.
    """
    if phase_of(workflow) == "Succeeded":
        return 0
    failed = [node for node in nodes_of(workflow) if node.phase in {"Failed", "Errored"}]
    if not failed:
        return failures.PERMANENT if phase_of(workflow) == "Error" else failures.TRANSIENT
    ended = [node for node in failed if node.exit_code is not None]
    permanent = [node for node in ended if not is_worth_retrying(_retries(workflow, node), node)]
    return failures.PERMANENT if permanent else failures.TRANSIENT


def _retries(workflow: JsonObject, node: Node) -> RetryStrategy | None:
    templates = {template["name"]: template for template in workflow["spec"]["templates"]}
    written = (templates.get(node.template) or {}).get("retryStrategy")
    return None if written is None else RetryStrategy.model_validate(written)
