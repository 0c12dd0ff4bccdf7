"""The commands of `python -m agentic.tasks`: arguments, output and exit codes; the work is in the modules beside it."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentic.authoring.check import TaskReport, check_tasks, find_tasks
from agentic.errors import PermanentError, TransientError
from agentic.sandbox.settings import BubblewrapSandbox

GOOD, UNJUDGED, BAD = 0, 75, 78
"""Exit codes: all tasks are good; try again; something has to be changed."""
MARKS = {"good": "[green]good[/]", "bad": "[red]bad[/]", "unjudged": "[yellow]unjudged[/]"}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code."""
    arguments = make_parser().parse_args(words)
    try:
        return int(arguments.run(arguments))
    except PermanentError as error:
        sys.stderr.write(f"{error}\n")
        return BAD
    except TransientError as error:
        sys.stderr.write(f"{error}\n")
        return UNJUDGED


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agentic.tasks", description="Make tasks, and say what is wrong.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="say what is wrong with tasks",
        description="Exit code 0: all good; 78: one is bad; 75: try again.",
    )
    check.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="a task, or a folder of tasks")
    check.add_argument("--json", action="store_true", help="print the reports as JSON")
    _add_store(check)
    check.set_defaults(run=_check)
    return parser


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=Path, metavar="DIR", help="keep built images there (default: nowhere)")
    parser.add_argument("--parallel", type=int, default=2, metavar="N", help="tasks tried at once (default: 2)")


def _check(arguments: argparse.Namespace) -> int:
    tasks = find_tasks(arguments.folders)
    with ExitStack() as stack:
        store = store_folder(arguments.images, stack)
        sandbox = BubblewrapSandbox()
        work = check_tasks(tasks, store, sandbox, concurrency=arguments.parallel, on_task=show_progress)
        reports = asyncio.run(work)
    if arguments.json:
        sys.stdout.write(json.dumps([report.model_dump() for report in reports], indent=1) + "\n")
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(reports))
    verdicts = {report.verdict for report in reports}
    return BAD if "bad" in verdicts else UNJUDGED if "unjudged" in verdicts else GOOD


def store_folder(wanted: Path | None, stack: ExitStack) -> Path:
    """Where images go: the given folder, or one that is removed at the end."""
    if wanted is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentic-images-")))
    return wanted.resolve()


def show_progress(done: int, total: int, name: str) -> None:
    """One line to standard error, rewritten where that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{done} of {total}: {name}" + ("\n" if done == total else ""))


def table(reports: Sequence[TaskReport]) -> Table:
    """The reports for people."""
    shown = Table(box=None, pad_edge=False)
    for column in ("task", "verdict", "reference", "empty"):
        shown.add_column(column, no_wrap=True)
    shown.add_column("problems", overflow="fold")
    for report in reports:
        rewards = ("-" if reward is None else f"{reward:g}" for reward in (report.reference, report.empty))
        shown.add_row(report.task, MARKS[report.verdict], *rewards, "\n".join(report.problems).replace("[", r"\["))
    return shown
