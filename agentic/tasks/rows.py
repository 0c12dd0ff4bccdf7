"""Rows in SWE-bench's schema as Harbor tasks.

A row needs `instance_id`, `problem_statement`, `test_patch` and `FAIL_TO_PASS`; it may give `PASS_TO_PASS`, `patch`,
`image` and `test_command`. The tests are applied after the agent is done and run one by name by `test_command`
(default: pytest), and the reward is 1 only when all named tests pass. How each repository of SWE-bench runs its tests
is not in such rows: whoever needs that uses the `swebench` source.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentic.tasks.errors import DataError
from agentic.tasks.folder import split_tasks
from agentic.tasks.harbor_format import CONFIG, DOCKERFILE, INSTRUCTION, SOLUTION, TEST, TaskFolder, TaskSpec
from agentic.tasks.parquet import read_rows
from agentic.tasks.settings import RowsData

WORK_FOLDER = "/testbed"
TEST_COMMAND = "python -m pytest -q -p no:cacheprovider"


class SourceRow(BaseModel):
    """The columns of a row that become a task; the others are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    problem_statement: str = Field(min_length=1)
    test_patch: str
    fail_to_pass: tuple[str, ...] = Field(alias="FAIL_TO_PASS", min_length=1)
    pass_to_pass: tuple[str, ...] = Field((), alias="PASS_TO_PASS")
    patch: str = ""
    image: str | None = None
    test_command: str = TEST_COMMAND

    @field_validator("fail_to_pass", "pass_to_pass", mode="before")
    @classmethod
    def _decode(cls, value: Any) -> Any:
        """Published rows hold these lists as JSON text."""
        return json.loads(value) if isinstance(value, str) else value


def read_source_rows(settings: RowsData) -> dict[str, list[TaskFolder]]:
    """Split → tasks."""
    path = Path(settings.path)
    if not path.is_file():
        raise DataError(f"data.path {settings.path} is no file: give a .parquet or .jsonl file")
    tasks: dict[str, TaskFolder] = {}
    for number, raw in enumerate(_read(path), 1):
        task = _make_task(_parse(raw, f"{settings.path}, row {number}"), settings.image)
        if task.task_id in tasks:
            raise DataError(f"{settings.path}, row {number}: instance_id {task.task_id} occurs twice: remove one")
        tasks[task.task_id] = task
    if not tasks:
        raise DataError(f"{settings.path} has no rows: give a file with at least one")
    return split_tasks(tasks, round(len(tasks) * settings.held_out_fraction), settings.seed)


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return read_rows(path)
    if path.suffix != ".jsonl":
        raise DataError(f"{path} ends with {path.suffix!r}: give a .parquet or .jsonl file")
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number} is not JSON ({error}): correct it") from error
    return rows


def _parse(raw: dict[str, Any], where: str) -> SourceRow:
    try:
        return SourceRow.model_validate(raw)
    except (ValidationError, ValueError) as error:
        details = error.errors() if isinstance(error, ValidationError) else [{"loc": ("row",), "msg": str(error)}]
        first = details[0]
        raise DataError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}: correct the row") from error


def _make_task(row: SourceRow, image_pattern: str) -> TaskFolder:
    image = row.image or image_pattern.format(instance_id=row.instance_id.replace("__", "_1776_"))
    spec = TaskSpec(
        name=f"rows/{row.instance_id}",
        difficulty="medium",
        category="repair",
        agent_seconds=1800.0,
        verifier_seconds=900.0,
    )
    texts = {
        CONFIG: spec.to_toml(),
        INSTRUCTION: row.problem_statement.rstrip() + "\n",
        DOCKERFILE: f"FROM {image}\nWORKDIR {WORK_FOLDER}\n",
        TEST: _test_script(row),
        "tests/test.patch": row.test_patch,
    }
    if row.patch:
        texts[SOLUTION] = f"#!/bin/sh\nset -e\ncd {WORK_FOLDER}\ngit apply /solution/fix.patch\n"
        texts["solution/fix.patch"] = row.patch
    return TaskFolder(row.instance_id, {name: text.encode() for name, text in texts.items()})


def _test_script(row: SourceRow) -> str:
    """Restores the test files to the commit before applying the hidden tests, so that edits to them don't count."""
    tests = " ".join(shlex.quote(name) for name in (*row.fail_to_pass, *row.pass_to_pass))
    touched = [shlex.quote(name) for name in re.findall(r"^--- a/(\S+)$", row.test_patch, re.MULTILINE)]
    restore = [f"git checkout -q HEAD -- {name}" for name in touched]
    lines = ["#!/bin/sh", f"cd {WORK_FOLDER}", "reward=0", "if {", *(f"  {line} &&" for line in restore)]
    lines += ["  git apply /tests/test.patch &&", f"  {row.test_command} {tests}", "}; then reward=1; fi"]
    lines += [
        "mkdir -p /logs/verifier",
        "rm -rf /logs/verifier/reward.json",
        "echo $reward > /logs/verifier/reward.txt",
    ]
    return "\n".join(lines) + "\n"
