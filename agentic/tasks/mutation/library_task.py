"""A mutant of a library as a Harbor task folder: pure, from the library's files and what its tests said."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath

from agentic.tasks.harbor_format import CONFIG, DOCKERFILE, INSTRUCTION, SOLUTION, TEST, TaskFolder, TaskSpec
from agentic.tasks.mutation.edits import Edit
from agentic.tasks.mutation.grader import CONFIGURATION
from agentic.tasks.packed import packed

WORK_FOLDER = "/app"
PROBE = "agentic_probe.py"
TEST_FOLDERS = frozenset({"test", "tests", "testing"})
SHOWN_FAILURES = 5
"""Of the failing tests, how many the instruction names."""


@dataclass(frozen=True)
class Library:
    """A library and what its tests need."""

    name: str
    version: str
    files: Mapping[str, bytes]
    """Source tree, tests included, by path."""
    wheels: Mapping[str, bytes]
    """What the tests need, by file name; `requirements.txt` among them pins it."""
    base_image: str

    @property
    def roots(self) -> tuple[str, ...]:
        """Where imports start, in the work folder."""
        has_src = any(name.startswith("src/") for name in self.files)
        return (f"{WORK_FOLDER}/src", WORK_FOLDER) if has_src else (WORK_FOLDER,)


@dataclass(frozen=True)
class LibraryMutant:
    """One edit that tests notice."""

    path: str
    edit: Edit
    source: str
    """The edited file."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    messages: Mapping[str, str]
    """Failing test → first line of its failure."""


def is_of_tests(name: str) -> bool:
    """Whether a file belongs to a library's tests or to their configuration, by its path."""
    path = PurePosixPath(name)
    in_folder = any(part in TEST_FOLDERS for part in path.parts[:-1])
    return in_folder or path.name in CONFIGURATION or path.name.startswith("test_") or path.stem.endswith("_test")


def environment_files(library: Library, tree: Mapping[str, bytes]) -> dict[str, bytes]:
    """`environment/`: the pinned wheels are a layer of their own, shared by all tasks of the library."""
    dockerfile = [
        f"FROM {library.base_image}",
        "COPY wheels/ /opt/wheels/",
        "RUN python3 -m pip install -q --disable-pip-version-check --no-index --find-links /opt/wheels "
        "--target /opt/site --no-deps -r /opt/wheels/requirements.txt",
        f"ENV PYTHONPATH=/opt/site:{':'.join(library.roots)} PYTHONDONTWRITEBYTECODE=1",
        f"WORKDIR {WORK_FOLDER}",
        f"COPY source/ {WORK_FOLDER}/",
    ]
    found = {DOCKERFILE: ("\n".join(dockerfile) + "\n").encode()}
    found |= {f"environment/wheels/{name}": data for name, data in library.wheels.items()}
    return found | {f"environment/source/{name}": data for name, data in tree.items()}


def make_library_task(library: Library, mutant: LibraryMutant, task_id: str, seconds: float) -> TaskFolder:
    """The task's files. Test files with a failing test are not in the environment; grading puts all of them back."""
    tests = {name.partition("::")[0] for name in (*mutant.fail_to_pass, *mutant.pass_to_pass)}
    hidden = {name.partition("::")[0] for name in mutant.fail_to_pass}
    suite = {name for name in library.files if name in tests or is_of_tests(name)}
    tree = {name: data for name, data in library.files.items() if name not in hidden}
    tree[mutant.path] = mutant.source.encode()
    spec = TaskSpec(
        name=f"mutation/{task_id}",
        difficulty="medium",
        category=mutant.edit.kind,
        agent_seconds=900.0,
        verifier_seconds=seconds + 60.0,
    )
    expected = {
        "app": WORK_FOLDER,
        "seconds": seconds,
        "FAIL_TO_PASS": mutant.fail_to_pass,
        "PASS_TO_PASS": mutant.pass_to_pass,
    }
    contents = {
        CONFIG: spec.to_toml().encode(),
        INSTRUCTION: _instruction(library, mutant).encode(),
        TEST: b"#!/bin/sh\nexec python3 -I /tests/grade.py\n",
        SOLUTION: f"#!/bin/sh\nset -e\ncp /solution/original {WORK_FOLDER}/{mutant.path}\n".encode(),
        "solution/original": library.files[mutant.path],
        "tests/expected.json": (json.dumps(expected, indent=1) + "\n").encode(),
        "tests/grade.py": packed("mutation/grader.py"),
        f"tests/{PROBE}": files("agentic.tasks.mutation").joinpath("probe.py").read_bytes(),
    }
    contents |= {f"tests/suite/{name}": library.files[name] for name in sorted(suite)}
    return TaskFolder(task_id, contents | environment_files(library, tree))


def _instruction(library: Library, mutant: LibraryMutant) -> str:
    shown = mutant.fail_to_pass[:SHOWN_FAILURES]
    lines = [f"- {name}: {mutant.messages.get(name) or 'fails'}" for name in shown]
    rest = len(mutant.fail_to_pass) - len(shown)
    return "\n".join(
        [
            f"The library {library.name} {library.version} lies in {WORK_FOLDER}. A recent change to one of its",
            "functions broke it: these tests fail, whose files you do not have.",
            "",
            *lines,
            *([f"- and {rest} more"] if rest else []),
            "",
            "Repair the library's code. Other tests have to pass as before. `python3 -m pytest -o addopts=` runs those",
            "that are there; changes to tests and to their configuration are undone before grading.",
            "",
        ]
    )
