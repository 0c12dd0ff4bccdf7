"""What is wrong with a task folder as it lies there: nothing is run, and every finding is one line.

Harbor's own model judges the fields of `task.toml`; the rest are the rules that a trial would stumble over later, in a
place that does not name the task's author. What only a run can show (does the image build, is the reference solution
right) is not looked at here.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from agentic.tasks.errors import DataError
from agentic.tasks.grading_policy import STEPS_IN_PLACE, parse_policy
from agentic.tasks.harbor_format import CONFIG, DOCKERFILE, INSTRUCTION, SOLUTION, TEST

TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
REWARD_FILE = re.compile(rb"reward\.(txt|json)")
CLOCKS = (("agent", "how long an agent may work"), ("verifier", "how long the tests may take"))


def find_problems(folder: Path) -> list[str]:
    """One line for each problem; none means that the folder can be tried in a sandbox."""
    if not folder.is_dir():
        return [f"{folder} is no folder: give the folder of a task"]
    return [*_name(folder), *_files(folder), *_config(folder), *_tests(folder)]


def _name(folder: Path) -> Iterator[str]:
    if not TASK_ID.fullmatch(folder.resolve().name):
        yield f"the folder's name {folder.resolve().name!r} is the task's id: use letters, digits, '.', '_', '-'"


def _files(folder: Path) -> Iterator[str]:
    for name, meaning in (
        (INSTRUCTION, "what the agent is told"),
        (TEST, "the script that grades"),
        (SOLUTION, "the reference solution, which shows that the task can be solved"),
    ):
        if not (folder / name).is_file():
            yield f"{name} is missing: write {meaning}"
        elif not (folder / name).read_bytes().strip():
            yield f"{name} is empty: write {meaning}"


def _config(folder: Path) -> Iterator[str]:
    path = folder / CONFIG
    if not path.is_file():
        yield f"{CONFIG} is missing: write at least [agent] and [verifier] with timeout_sec"
        return
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        yield f"{CONFIG} is not valid TOML ({error}): correct it"
        return
    yield from _fields(config)
    environment = config.get("environment")
    image = environment.get("docker_image") if isinstance(environment, dict) else None
    if not image and not (folder / DOCKERFILE).is_file():
        yield f"neither {DOCKERFILE} nor environment.docker_image in {CONFIG} is there: give one of them"


def _fields(config: dict[str, object]) -> Iterator[str]:
    from harbor.models.task.config import TaskConfig
    from pydantic import ValidationError

    try:
        TaskConfig.model_validate(config)
    except ValidationError as error:
        for problem in error.errors():
            yield f"{CONFIG}: {'.'.join(map(str, problem['loc']))}: {' '.join(problem['msg'].split())}: correct it"
    try:
        if parse_policy(config, CONFIG).mode == "fresh" and config.get("steps"):
            yield f"{CONFIG}: {STEPS_IN_PLACE}"
    except DataError as error:
        yield str(error)
    for section, meaning in CLOCKS:
        part = config.get(section)
        if not isinstance(part, dict) or "timeout_sec" not in part:
            yield f"{CONFIG}: {section}.timeout_sec is missing: say {meaning}"


def _tests(folder: Path) -> Iterator[str]:
    script = folder / TEST
    if not script.is_file() or not script.read_bytes().strip():
        return
    if not script.read_bytes().startswith(b"#!"):
        yield f"{TEST} has no #! line: begin it with #!/bin/sh"
    files = (path for path in (folder / "tests").rglob("*") if path.is_file())
    if not any(REWARD_FILE.search(path.read_bytes()) for path in files):
        yield f"{TEST} writes no reward: write 1 or 0 to /logs/verifier/reward.txt at its end"
