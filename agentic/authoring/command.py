"""The commands of `python -m agentic.tasks`: arguments, output and exit codes; the work is in the modules beside it."""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentic.authoring.check import TaskReport, check_tasks, find_tasks
from agentic.errors import PermanentError, TransientError
from agentic.files import write_json
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
    mutate = commands.add_parser("mutate", help="make repair tasks from a library with tests")
    mutate.add_argument("package", metavar="PACKAGE", help="a name, name==version, or a folder with a source tree")
    mutate.add_argument("--count", type=_count, required=True, metavar="N", help="tasks wanted, those there included")
    mutate.add_argument("--out", type=Path, metavar="DIR", help="folder of the tasks (default: mutated/PACKAGE)")
    mutate.add_argument("--seed", type=int, default=0, help="another seed tries other edits (default: 0)")
    mutate.add_argument(
        "--with", dest="extra", action="append", default=[], metavar="REQUIREMENT", help="for its tests"
    )
    mutate.add_argument(
        "--results", type=Path, metavar="FILE", help="put yield and time into this JSON file, by package"
    )
    _add_store(mutate)
    mutate.set_defaults(run=_mutate)
    return parser


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=Path, metavar="DIR", help="keep built images there (default: nowhere)")
    parser.add_argument("--parallel", type=_count, default=2, metavar="N", help="tasks tried at once (default: 2)")


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number above 0")
    return int(word)


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


def _mutate(arguments: argparse.Namespace) -> int:
    from agentic.authoring.library import get_library
    from agentic.authoring.mutate import Recipe, make_tasks

    out = (arguments.out or Path("mutated") / Path(arguments.package.partition("==")[0]).name).resolve()
    library = get_library(arguments.package, arguments.extra, out / ".work")
    with ExitStack() as stack:
        store = store_folder(arguments.images, stack)
        made = asyncio.run(make_tasks(Recipe(library, arguments.count, arguments.seed, out, store), show_line))
    if arguments.results:
        add_result(arguments.results, made.package, made.model_dump())
    sys.stdout.write(made.model_dump_json(indent=1) + "\n")
    if made.tasks < arguments.count:
        raise PermanentError(f"{made.edits} edits gave {made.tasks} of {arguments.count} tasks: ask for fewer")
    return GOOD


def add_result(path: Path, name: str, result: dict[str, object]) -> None:
    """One entry of a results file, which says on what machine it was measured."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    machine = {"processors": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "python": platform.python_version()}
    write_json(path, dict(sorted({**known, name: {**result, "machine": machine}}.items())))


def show_line(done: int, total: int, line: str) -> None:
    """One line of progress to standard error."""
    sys.stderr.write(f"[{done}/{total}] {line}\n")


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
