"""A task folder in Harbor's format, written and read without Harbor.

    task.toml  instruction.md  environment/Dockerfile  tests/test.sh  solution/solve.sh

Only the keys that this project sets or reads are modelled; a test holds what is written against Harbor's own models. A
folder is read whole, so that what was read can be written elsewhere unchanged.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from agentic.tasks.errors import DataError

CONFIG = "task.toml"
INSTRUCTION = "instruction.md"
DOCKERFILE = "environment/Dockerfile"
TEST = "tests/test.sh"
SOLUTION = "solution/solve.sh"


@dataclass(frozen=True)
class TaskFolder:
    """One task: its id and every file by its path in the folder."""

    task_id: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    """What differs in the trainer's row from what `parquet.make_row` says; None takes a column out."""

    @property
    def instruction(self) -> str:
        return self.files[INSTRUCTION].decode().strip()

    def config(self) -> dict[str, object]:
        """The parsed `task.toml`."""
        return tomllib.loads(self.files[CONFIG].decode())


@dataclass(frozen=True)
class TaskSpec:
    """What varies in the `task.toml` that this project writes."""

    name: str
    """`organisation/name`, as Harbor wants it."""
    difficulty: str
    category: str
    agent_seconds: float = 120.0
    verifier_seconds: float = 30.0
    artifacts: tuple[str, ...] = ()
    """Absolute paths in the sandbox that grading needs. When given, grading happens in a fresh sandbox that sees these
    files alone; otherwise in the agent's own."""
    answer_file: str = ""
    """See `GradingPolicy.answer_file`."""

    def to_toml(self) -> str:
        quote = json.dumps
        lines = ['schema_version = "1.4"']
        if self.artifacts:
            lines.append(f"artifacts = {quote(list(self.artifacts))}")
        lines += ["", "[task]", f"name = {quote(self.name)}"]
        lines += ["", "[metadata]", f"difficulty = {quote(self.difficulty)}", f"category = {quote(self.category)}"]
        if self.answer_file:
            lines += ["", "[metadata.grading]", f"answer_file = {quote(self.answer_file)}"]
        lines += ["", "[environment]", 'network_mode = "no-network"']
        lines += ["", "[agent]", f"timeout_sec = {self.agent_seconds}"]
        lines += ["", "[verifier]", f"timeout_sec = {self.verifier_seconds}"]
        if self.artifacts:
            lines += ['environment_mode = "separate"', "", "[[verifier.collect]]"]
            lines.append(f"command = {quote(_collect_command(self.artifacts))}")
        return "\n".join(lines) + "\n"


def _collect_command(artifacts: tuple[str, ...]) -> str:
    """Replaces links by what they point to, since an artifact is collected as a plain file."""
    return "; ".join(f"[ -L {path} ] && cp --remove-destination -L {path} {path} || true" for path in artifacts)


def write_task(task: TaskFolder, folder: Path) -> None:
    """Write all files under `folder`, which must not hold another task; scripts become executable."""
    made: set[Path] = set()
    for name, content in task.files.items():
        path = folder / _checked(name)
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        path.write_bytes(content)
        if name.endswith(".sh"):
            path.chmod(0o755)


def read_task(folder: Path) -> TaskFolder:
    """Read and check a folder; its name is the task's id."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
    task = TaskFolder(folder.name, files)
    _check(task, folder)
    return task


def is_task(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def _check(task: TaskFolder, folder: Path) -> None:
    for name in (CONFIG, INSTRUCTION, TEST):
        if name not in task.files:
            raise DataError(f"{folder}: {name} is missing: a Harbor task needs {CONFIG}, {INSTRUCTION} and {TEST}")
    try:
        config = task.config()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{folder / CONFIG} is not valid TOML ({error}): correct it") from error
    environment = config.get("environment")
    image = environment.get("docker_image") if isinstance(environment, dict) else None
    if DOCKERFILE not in task.files and not image:
        raise DataError(f"{folder}: neither {DOCKERFILE} nor environment.docker_image in {CONFIG}: give one of them")


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"file name {name!r} leaves the task's folder: use a relative path without '..'")
    return path
