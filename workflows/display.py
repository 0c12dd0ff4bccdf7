"""What a person sees of a run, here or on a cluster: a live table on a terminal, plain lines elsewhere.

A display decides nothing and is told everything through `Board`. What a running step says of its progress comes from
the files `runs/<run-id>/progress/<node>.json`, which the steps write, or from the cluster; a progress file that cannot
be read is no progress and no error.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from workflows.local.scheduler import FINAL, Node

REFRESH_SECONDS = 0.5
"""Between two looks at the progress files."""

QUIET_SECONDS = 5.0
"""Least time between two progress lines of one step on plain output."""

STYLES = {"Succeeded": "green", "Running": "cyan", "Retrying": "yellow", "Failed": "red", "Errored": "red"}
"""Colours of phases on a terminal; the others stay dim."""


class ProgressReport(BaseModel):
    """A progress file, as `steps/output.py` writes it."""

    done: int
    total: int
    message: str
    updated: float
    """Unix time."""


def read_progress(path: Path) -> ProgressReport | None:
    """What the file says; nothing when it cannot be read."""
    try:
        return ProgressReport.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class ProgressFiles:
    """Reads what the steps of a run in this workspace write."""

    run_dir: Path

    def __call__(self, node: Node) -> str:
        """`3/14 message`, or nothing when the step has not reported since it started."""
        report = read_progress(self.run_dir / "progress" / f"{node.name}.json")
        if report is None or report.updated < (node.started or 0):
            return ""
        return f"{report.done}/{report.total} {report.message}".strip()


@dataclass
class Board:
    """The nodes in order of appearance, and what each last says of its progress."""

    progress: Callable[[Node], str]
    nodes: dict[str, Node] = field(default_factory=dict)


def elapsed(node: Node) -> str:
    """`2:05`, or nothing before the start."""
    if node.started is None:
        return ""
    minutes, seconds = divmod(int((node.ended or time.time()) - node.started), 60)
    return f"{minutes}:{seconds:02d}"


def status_line(board: Board, node: Node) -> str:
    """What is to be said of a node now: its own message, or its progress while it runs."""
    return node.message or (board.progress(node) if node.phase in {"Running", "Succeeded"} else "")


def describe(board: Board, node: Node) -> str:
    """A node as one line of plain output."""
    parts = [f"{node.name:<18}", f"{node.phase:<9}"]
    if node.attempt > 1:
        parts.append(f"attempt {node.attempt}")
    if node.phase in FINAL and node.started is not None:
        parts.append(elapsed(node))
    return " ".join([*parts, status_line(board, node)]).rstrip()


class PlainDisplay:
    """One line for each change of phase, and a progress line of a running step now and then."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._console = console
        self._said: dict[str, tuple[float, str]] = {}

    def changed(self, node: Node) -> None:
        """Say the node's new phase."""
        if node.phase == "Waiting":
            return
        self._print(f"{time.strftime('%H:%M:%S')} {describe(self._board, node)}")

    def tick(self) -> None:
        """Say the progress of running nodes that has changed."""
        for node in self._board.nodes.values():
            line = self._board.progress(node) if node.phase == "Running" else ""
            when, before = self._said.get(node.name, (0.0, ""))
            if line and line != before and time.monotonic() - when >= QUIET_SECONDS:
                self._said[node.name] = (time.monotonic(), line)
                self._print(f"{time.strftime('%H:%M:%S')} {node.name:<18} {elapsed(node)} {line}")

    def close(self) -> None:
        """Nothing is held."""

    def _print(self, line: str) -> None:
        self._console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


class LiveDisplay:
    """A table that is redrawn in place."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._live = Live(self._table(), console=console, auto_refresh=False)
        self._live.start()

    def changed(self, node: Node) -> None:
        """Redraw."""
        self.tick()

    def tick(self) -> None:
        """Redraw, since times and progress move on."""
        self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        """Leave the last table standing."""
        try:
            self.tick()
        finally:
            self._live.stop()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("STEP", "STATE", "TIME", "TRY"):
            table.add_column(heading, no_wrap=True)
        table.add_column("MESSAGE", overflow="fold", ratio=1)
        for node in self._board.nodes.values():
            style = STYLES.get(node.phase, "dim")
            attempt = str(node.attempt) if node.attempt else ""
            message = Text(status_line(self._board, node), style="red" if style == "red" else "")
            table.add_row(node.name, Text(node.phase, style=style), elapsed(node), attempt, message)
        return table


class SilentDisplay:
    """Shows nothing."""

    def changed(self, node: Node) -> None:
        """Nothing to show it on."""

    def tick(self) -> None:
        """Nothing moves."""

    def close(self) -> None:
        """Nothing is held."""


class Screen:
    """Gathers what the scheduler tells and keeps a display fed until it is closed.

    When the output cannot be written any more (a full disk behind a redirection), the run goes on unseen.
    """

    def __init__(self, board: Board, console: Console) -> None:
        self.board = board
        make: Callable[[Board, Console], PlainDisplay | LiveDisplay]
        make = LiveDisplay if console.is_terminal else PlainDisplay
        self._display: PlainDisplay | LiveDisplay | SilentDisplay = make(self.board, console)

    def observe(self, node: Node) -> None:
        """Take in a change of a node."""
        self.board.nodes.setdefault(node.name, node)
        with self._silent_when_it_fails():
            self._display.changed(node)

    async def refresh(self) -> None:
        """Follow the progress files until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            with self._silent_when_it_fails():
                self._display.tick()

    def close(self) -> None:
        """End the display."""
        with self._silent_when_it_fails():
            self._display.close()

    @contextmanager
    def _silent_when_it_fails(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            failed, self._display = self._display, SilentDisplay()
            with suppress(OSError):
                failed.close()
