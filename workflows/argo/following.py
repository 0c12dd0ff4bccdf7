"""A run on a cluster as it goes on, on the display of local runs, from the Workflow object alone."""

import asyncio
from contextlib import suppress

from rich.console import Console

from agentic.cluster.resources import JsonObject
from steps import failures
from workflows.argo.api import Workflows
from workflows.argo.nodes import nodes_of, phase_of
from workflows.display import Board, Screen
from workflows.local.scheduler import Node


async def follow(workflows: Workflows, name: str, console: Console) -> JsonObject:
    """Show the Workflow until it ends; the object then.

    Raises:
        NotFoundError: there is none.
        GoneError: it was deleted meanwhile.
    """
    screen = Screen(Board(_progress), console)
    refreshing = asyncio.create_task(screen.refresh())
    workflow: JsonObject = {}
    try:
        async for workflow in workflows.follow(name):
            for node in nodes_of(workflow):
                _show(node, screen)
    finally:
        refreshing.cancel()
        with suppress(asyncio.CancelledError):
            await refreshing
        screen.close()
    return workflow


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
    """0, or 75 when trying the failed steps again may help, or 78 when it cannot."""
    if phase_of(workflow) == "Succeeded":
        return 0
    failed = [node for node in nodes_of(workflow) if node.phase in {"Failed", "Errored"}]
    permanent = [node for node in failed if node.exit_code == failures.PERMANENT]
    return failures.PERMANENT if permanent else failures.TRANSIENT
