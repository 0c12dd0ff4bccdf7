"""Harbor's own SWE-bench tasks, graded in sandboxes that reach nothing.

Harbor's adapter ends each `tests/test.sh` with a parser that is run by `uv`, which fetches `swebench`, `datasets` and,
on older images, a Python first; and what cannot be fetched reads as a test that failed. The instance's row of the data
set lies beside it, in `tests/config.json`. So a task of that form gets the tests of a task from rows (see
`swebench_grading.py`): the commands before the parser, between the package's own marks, and the row's lists. The row
itself, which has the reference patch in it, does not go to where the code under test could read it. Other tasks are
left as they are.

Source of the form: Harbor's `adapters/swebench` (`template/tests/test.sh` and `get_test_commands`).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import DOCKERFILE, TEST, TaskFolder
from agentic.tasks.swebench_grading import GRADING_SECONDS, grading_files

ROW = "tests/config.json"
PARSERS = {
    "astropy/astropy": "parse_log_astropy",
    "django/django": "parse_log_django",
    "matplotlib/matplotlib": "parse_log_matplotlib",
    "mwaskom/seaborn": "parse_log_seaborn",
    "pallets/flask": "parse_log_flask",
    "psf/requests": "parse_log_requests",
    "pydata/xarray": "parse_log_xarray",
    "pylint-dev/pylint": "parse_log_pylint",
    "pytest-dev/pytest": "parse_log_pytest",
    "scikit-learn/scikit-learn": "parse_log_scikit",
    "sphinx-doc/sphinx": "parse_log_sphinx",
    "sympy/sympy": "parse_log_sympy",
}
"""Of the repositories of SWE-bench Verified, as `swebench` 4 has it by repository; rows of version 5 name their own."""
LEAST_SECONDS = 60.0

FETCHES = "# /// script\n"
"""Begins what a Python script says of the packages that `uv run` gets for it (PEP 723)."""
_PARSER = re.compile(r"^cat >.*$", re.MULTILINE)
_RECORD = re.compile(r"^\s*exec\s*>\s*>\(tee ")
_STOP = re.compile(r"^\s*exec 1>&3 2>&4")
_RECORDING = re.compile(r"^\s*(LOG_FILE=.*|export LOG_FILE|exec 3>&1 4>&2)$")
_QUIET = re.compile(r"^\s*set \+x$")
_FLAGS = re.compile(r"^\s*set -uo pipefail")
_ALWAYS_WELL = re.compile(r"\s*\|\|\s*true\s*$")


class ExportedRow(BaseModel):
    """The columns that are needed; the others are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance_id: str
    repo: str
    version: str = ""
    fail_to_pass: tuple[str, ...] | str = Field(alias="FAIL_TO_PASS")
    """Tuples, or as published the JSON text of one."""
    pass_to_pass: tuple[str, ...] | str = Field(alias="PASS_TO_PASS")
    log_parser: str = ""
    eval_type: str = "pass_and_fail"


def graded_here(task: TaskFolder) -> TaskFolder:
    """The task with a grader that fetches nothing. Raises DataError for one that fetches and has another form."""
    script = task.files[TEST].decode(errors="replace")
    if FETCHES not in script:
        return task
    row = _row(task)
    parser = row.log_parser or PARSERS.get(row.repo, "")
    if not parser:
        raise DataError(
            f"task {task.task_id}: no log parser is known for {row.repo}: add log_parser to its {ROW}, the name of one "
            "of the package swebench"
        )
    image = re.search(r"^FROM\s+(\S+)", task.files.get(DOCKERFILE, b"").decode(errors="replace"), re.MULTILINE)
    whole = row.model_dump(by_alias=True) | {
        "image": image[1] if image else "",
        "log_parser": parser,
        "eval_script": _eval_script(task.task_id, script),
    }
    kept = {name: data for name, data in task.files.items() if not name.startswith("tests/")}
    return replace(task, files=kept | grading_files(whole, _test_seconds(task.config())))


def _row(task: TaskFolder) -> ExportedRow:
    try:
        return ExportedRow.model_validate(json.loads(task.files[ROW]))
    except KeyError:
        raise DataError(
            f"task {task.task_id}: its {TEST} fetches what reads its log, and sandboxes reach no network; without a "
            f"{ROW} no other way is known: change the script"
        ) from None
    except (ValidationError, ValueError) as error:
        details = str(error).splitlines()
        raise DataError(f"task {task.task_id}: {ROW} is no row of SWE-bench: {' '.join(details[:3])}") from error


def _eval_script(task_id: str, script: str) -> str:
    """The adapter's commands as the package writes them: the tests between its marks, with their own exit code."""
    head = script[: script.index(FETCHES)]
    parsers = list(_PARSER.finditer(head))
    lines = (head[: parsers[-1].start()] if parsers else head).splitlines()
    records = [number for number, line in enumerate(lines) if _RECORD.match(line)]
    stops = [number for number, line in enumerate(lines) if records and number > records[-1] and _STOP.match(line)]
    if not stops:
        raise DataError(
            f"task {task_id}: its {TEST} fetches what reads its log, sandboxes reach no network, and where its tests "
            "begin and end is not as Harbor's adapter writes it: use data.source rows"
        )
    before, tests, after = lines[: records[-1]], lines[records[-1] + 1 : stops[0]], lines[stops[-1] + 1 :]
    while before and _RECORDING.match(before[-1]):
        before.pop()
    tests = [_ALWAYS_WELL.sub("", line).strip() for line in tests if line.strip() and not _QUIET.match(line)]
    while after and after[-1].strip() in ("", "cd .."):
        after.pop()
    flags = [number for number, line in enumerate(before) if _FLAGS.match(line)]
    kept = before[flags[0] + 1 :] if flags else [line for line in before if not line.startswith("#!")]
    marks = (": '>>>>> Start Test Output'", ": '>>>>> End Test Output'")
    return "\n".join(["#!/bin/bash", "set -uxo pipefail", *kept, marks[0], *tests, marks[1], *after]) + "\n"


def _test_seconds(config: Mapping[str, Any]) -> float:
    """What the task gives its verifier, less what is not the tests."""
    seconds = float(config.get("verifier", {}).get("timeout_sec", 600.0))
    return max(LEAST_SECONDS, seconds - GRADING_SECONDS)
