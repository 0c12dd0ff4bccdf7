"""A mutant as a Harbor task folder."""

import json
from importlib.resources import files

from agentic.tasks.harbor_format import CONFIG, DOCKERFILE, INSTRUCTION, SOLUTION, TEST, TaskFolder, TaskSpec
from agentic.tasks.mutation.commands import repair_of
from agentic.tasks.mutation.generator import Mutant

BASE_IMAGE = "agentic/base:local"
"""Any image with a POSIX shell, sed and Python 3; the local profile has a root folder under this name."""
WORK_FOLDER = "/app"


def make_folder(mutant: Mutant, task_id: str, *, separate_grading: bool) -> TaskFolder:
    """The task's files; with `separate_grading` the tests run in a fresh sandbox that sees only the repaired file."""
    module = f"{WORK_FOLDER}/mod.py"
    spec = TaskSpec(
        name=f"repair/{task_id}",
        difficulty="easy",
        category=mutant.kind.value,
        artifacts=(module,) if separate_grading else (),
    )
    checks = [(list(arguments), expected) for arguments, expected in mutant.hidden]
    texts = {
        CONFIG: spec.to_toml(),
        INSTRUCTION: mutant.instruction + "\n",
        DOCKERFILE: f"FROM {BASE_IMAGE}\nWORKDIR {WORK_FOLDER}\nCOPY mod.py .\n",
        "environment/mod.py": mutant.source,
        TEST: f"#!/bin/sh\nexec python3 -I -S /tests/check.py {module} /logs/verifier\n",
        "tests/calls.json": json.dumps([[mutant.name, arguments] for arguments, _ in checks]) + "\n",
        "tests/expected.json": json.dumps([expected for _, expected in checks]) + "\n",
        SOLUTION: f"#!/bin/sh\nset -e\ncd {WORK_FOLDER}\n{repair_of(mutant.wrong)}\n",
    }
    contents = {name: text.encode() for name, text in texts.items()}
    contents["tests/check.py"] = files("agentic.tasks.mutation").joinpath("checker.py").read_bytes()
    return TaskFolder(task_id, contents)
