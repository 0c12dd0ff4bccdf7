"""Rows in SWE-bench's schema as Harbor tasks.

A row needs `instance_id`, `problem_statement`, `test_patch` and `FAIL_TO_PASS`; it may give `PASS_TO_PASS`, `patch`,
`image`. How its tests are run and read is said in one of two ways:
- `eval_script`, `log_parser` and `eval_type`, as rows of SWE-bench 5 have them: then the outcome is that of the
  `swebench` package (see `swebench_grading.py`);
- else `test_command` (default: pytest) runs the tests one by name after `test_patch` was applied, and the reward is 1
  only when all named tests pass.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentic.tasks.errors import DataError
from agentic.tasks.folder import split_tasks
from agentic.tasks.harbor_format import CONFIG, DOCKERFILE, INSTRUCTION, SOLUTION, TEST, TaskFolder, TaskSpec
from agentic.tasks.parquet import read_rows
from agentic.tasks.settings import RowsData
from agentic.tasks.swebench_grading import grading_files

WORK_FOLDER = "/testbed"
GRADING_SECONDS = 120.0
"""On top of the tests' own time: reading the log on a busy machine, and what the tests don't bound themselves."""
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
    repo: str = ""
    version: str = ""
    eval_script: str | None = None
    log_parser: str | None = None
    eval_type: str = "pass_and_fail"

    @model_validator(mode="after")
    def _script_has_its_parser(self) -> Self:
        if (self.eval_script is None) != (self.log_parser is None):
            raise ValueError("eval_script and log_parser go together: give both or neither")
        return self

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
        task = _make_task(_parse(raw, f"{settings.path}, row {number}"), settings)
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


def _make_task(row: SourceRow, settings: RowsData) -> TaskFolder:
    image = row.image or settings.image.format(instance_id=row.instance_id.replace("__", "_1776_"))
    spec = TaskSpec(
        name=f"rows/{row.instance_id}",
        difficulty="medium",
        category="repair",
        agent_seconds=1800.0,
        verifier_seconds=settings.test_seconds + GRADING_SECONDS,
    )
    texts = {
        CONFIG: spec.to_toml(),
        INSTRUCTION: row.problem_statement.rstrip() + "\n",
        DOCKERFILE: f"FROM {image}\nWORKDIR {WORK_FOLDER}\n",
    }
    if row.patch:
        texts[SOLUTION] = f"#!/bin/sh\nset -e\ncd {WORK_FOLDER}\ngit apply /solution/fix.patch\n"
        texts["solution/fix.patch"] = row.patch
    contents = {name: text.encode() for name, text in texts.items()} | _tests(row, image, settings.test_seconds)
    return TaskFolder(row.instance_id, contents)


def _tests(row: SourceRow, image: str, seconds: float) -> dict[str, bytes]:
    if row.eval_script is None:
        return {TEST: _test_script(row).encode(), "tests/test.patch": row.test_patch.encode()}
    return grading_files(row.model_dump(by_alias=True) | {"image": image}, seconds)


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
