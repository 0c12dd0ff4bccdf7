"""Rows in SWE-bench's schema as Harbor tasks.

A row needs `instance_id`, `problem_statement`, `test_patch` and `FAIL_TO_PASS`; it may give `PASS_TO_PASS`, `patch`,
`image`. How its tests are run and read is said in one of two ways:
- `eval_script`, `log_parser` and `eval_type`, as rows of SWE-bench 5 have them: then the outcome is that of the
  `swebench` package (see `swebench_grading.py`);
- else `test_command`, which runs pytest, is given the tests by name after `test_patch` was applied, and the
  reward is 1 only when the probe saw each named test pass: an exit code proves nothing.
"""

import json
import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentic.tasks.errors import DataError
from agentic.tasks.folder import split_tasks
from agentic.tasks.harbor_format import CONFIG, DOCKERFILE, INSTRUCTION, SOLUTION, TEST, TaskFolder, TaskSpec
from agentic.tasks.mutation.library_task import PROBE
from agentic.tasks.packed import packed
from agentic.tasks.parquet import read_rows
from agentic.tasks.settings import RowsData
from agentic.tasks.swebench_grading import GRADING_SECONDS, grading_files

WORK_FOLDER = "/testbed"
TEST_COMMAND = "python -m pytest -q -p no:cacheprovider"
SCRIPT = """\
#!/bin/sh
# The grader needs Python 3.8; published images have one beside that of the repository.
for python in /opt/miniconda3/bin/python python3 python; do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2> /dev/null; then
    exec "$python" -I /tests/grade.py
  fi
done
echo "no Python 3.8 or newer was found to grade the tests"
exit 1
"""


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

    @model_validator(mode="after")
    def _tests_are_named_to_pytest(self) -> Self:
        if self.eval_script is None and "pytest" not in self.test_command and "py.test" not in self.test_command:
            raise ValueError(f"test_command {self.test_command!r} runs no pytest: give eval_script and log_parser")
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
    for number, line in enumerate(path.read_text().split("\n"), 1):  # Texts may hold Unicode's other line ends.
        if not line.strip():
            continue
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
    if row.eval_script is not None:
        return grading_files(row.model_dump(by_alias=True) | {"image": image}, seconds)
    names = (*row.fail_to_pass, *row.pass_to_pass)
    expected = {
        "app": WORK_FOLDER,
        "seconds": seconds,
        "FAIL_TO_PASS": row.fail_to_pass,
        "PASS_TO_PASS": row.pass_to_pass,
        "command": [*shlex.split(row.test_command), *names],
        "touched": re.findall(r"^--- a/(\S+)$", row.test_patch, re.MULTILINE),
    }
    mutation = files("agentic.tasks.mutation")
    return {
        TEST: SCRIPT.encode(),
        "tests/test.patch": row.test_patch.encode(),
        "tests/expected.json": (json.dumps(expected, indent=1) + "\n").encode(),
        "tests/grade.py": packed("mutation/grader.py"),
        f"tests/{PROBE}": mutation.joinpath("probe.py").read_bytes(),
    }
