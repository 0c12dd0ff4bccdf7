"""What a task says about its grading, in `[metadata.grading]` of its `task.toml`; Harbor leaves metadata to readers.

    [metadata.grading]
    protected = ["fixtures/**"]     # besides the defaults below
    allowed = ["tests/helpers/**"]  # the agent's, though a default protects it

An agent's changes to a protected path are undone: what the task's image has there is what the tests meet. Patterns are
those of a path below the working folder: `*` and `?` stay within a name, `**` crosses folders, and a pattern without a
slash is meant at any depth. Pure, apart from reading the one file.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from agentic.settings import Settings
from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import CONFIG

Pattern = Annotated[str, Field(min_length=1, pattern=r"^[^/\x00\n][^\x00\n]*$")]

_SCRIPTS = ("js", "jsx", "mjs", "cjs", "ts", "tsx", "mts", "cts")
TEST_FILES = (
    *("tests/**", "test_*.py", "*_test.py", "*_tests.py", "runtests.*", "run_tests.*"),
    *(f"*.{word}.{suffix}" for word in ("test", "spec") for suffix in _SCRIPTS),
    *("__tests__/**", "__mocks__/**", "__snapshots__/**", "*_test.go", "*_test.rb", "*_spec.rb", "**/src/test/**"),
    *("test/*/**", "spec/*/**"),
)
"""Where tests live by the conventions of their runners. `test` and `spec` count at the top only: further down they are
often part of what is tested, as in Django."""

RUNNERS: Mapping[str, tuple[str, ...]] = {
    "sympy__sympy": ("bin/test", "bin/doctest", "sympy/testing/**", "sympy/utilities/runtests.py"),
}
"""What runs the tests of a benchmark's repository and lies in it, by the beginning of its tasks' names. Django's is
part of what its tasks repair, so it is not here."""

TEST_CONFIGURATION = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "tox.toml", "noxfile.py"),
    *(".coveragerc", "jest.config.*", "vitest.config.*", ".mocharc*", "karma.conf.js", ".rspec"),
)
"""What runners read besides the sections of files that hold other things too (see `agentic/rollout/grading`)."""

STARTUP = (
    *("sitecustomize.py", "usercustomize.py", "sitecustomize/**", "usercustomize/**", "*.pth", "*._pth"),
    *("*.egg-info/**", "*.dist-info/**", "*.egg-link", "pyvenv.cfg"),
)
"""What Python runs or reads before the tests, plug-ins announced by a package's metadata included."""

SHADOWS = frozenset(
    ("pytest", "_pytest", "pluggy", "iniconfig", "py", "nose", "nose2", "unittest", "doctest", "coverage", "xdist")
)
"""Modules that would stand in for a test runner's own where a path of imports begins. They are protected only where the
image has none: the repository of pytest is for its agent to change."""

DEFAULT_PROTECTED = (*TEST_FILES, *TEST_CONFIGURATION, *STARTUP)


STEPS_IN_PLACE = (
    "a task of several steps cannot be graded in a fresh sandbox, since each step goes on from the one before: say "
    'metadata.grading.mode = "in-place" and a reason in task.toml, or make a task of each step'
)


class GradingPolicy(Settings):
    """How a task's result is graded."""

    mode: Literal["fresh", "in-place"] = "fresh"
    """`fresh`: the tests run in a sandbox that the agent never saw, on what it changed in the working folder.
    `in-place`: in the agent's own sandbox, for tasks whose result is no folder (a service, a system's state)."""
    reason: str = ""
    """Why grading in place has to do; needed with it, and recorded with each grade."""
    folder: Annotated[str, Field(pattern=r"^(/[^\x00\n]+)?$")] = ""
    """The folder whose changes count; empty is where the sandbox's commands start."""
    protected: tuple[Pattern, ...] = ()
    """Paths whose changes are undone, besides the defaults."""
    allowed: tuple[Pattern, ...] = ()
    """Paths that are the agent's to change, whatever protects them."""
    may_leave_processes: bool = False
    """Whether the tests' own processes may still run when the test script ends. Otherwise a reward is not believed
    then: code under test could have left a process that writes it."""
    uses_defaults: bool = True
    """Whether the default paths are protected; without them only `protected` is."""
    answer_file: str = ""
    """A file below the folder that holds a reply with its answer in a box. One that the tests do not take is compared
    with the task's `tests/expected.txt` outside of the sandbox as well, by algebra."""

    @model_validator(mode="after")
    def _in_place_has_a_reason(self) -> Self:
        if self.mode == "in-place" and not self.reason.strip():
            raise ValueError(
                "grading.mode is in-place: say in grading.reason why a fresh sandbox cannot grade this task"
            )
        return self

    def protects(self, path: str) -> bool:
        """Whether an agent's change to this path, relative to the folder, is undone."""
        defaults = DEFAULT_PROTECTED if self.uses_defaults else ()
        return not matches(path, self.allowed) and matches(path, (*defaults, *self.protected))


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether any of the patterns means this path."""
    return bool(patterns) and _compiled(patterns).fullmatch(path) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{_expression(pattern)})" for pattern in patterns), re.DOTALL)


def _expression(pattern: str) -> str:
    """As a regular expression. `tests/**` means what is in any folder `tests`, and the folder itself: as a file or link
    of that name it would stand in the folder's place."""
    stem = pattern.removesuffix("/**")
    translated = "".join(_TOKENS.get(token, re.escape(token)) for token in re.findall(r"\*\*/?|\*|\?|[^*?]+", stem))
    anywhere = "" if "/" in stem else "(?:.*/)?"
    return anywhere + translated + ("(?:/.*)?" if stem != pattern else "")


_TOKENS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def read_policy(task_dir: Path) -> GradingPolicy:
    """The policy of a task's folder; the defaults when it says nothing. Raises DataError for one that is not valid."""
    path = task_dir / CONFIG
    try:
        status = path.stat()
        return _read(path, (status.st_ino, status.st_size, status.st_ctime_ns))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): correct it") from error


@lru_cache(maxsize=2048)
def _read(path: Path, state: tuple[int, ...]) -> GradingPolicy:
    """Kept by the file's state, since every trial of a task asks twice."""
    config = tomllib.loads(path.read_text(encoding="utf-8"))
    policy, task_dir = parse_policy(config, str(path)), path.parent
    runners = _runners(task_dir.name, config) if policy.uses_defaults else ()
    return policy.model_copy(update={"protected": (*policy.protected, *runners)}) if runners else policy


def _runners(folder: str, config: Mapping[str, object]) -> tuple[str, ...]:
    """Of the repository that a task says it is from, by its name or its folder's."""
    task = config.get("task")
    name = str(task.get("name", "")) if isinstance(task, dict) else ""
    repositories = {label.rpartition("/")[2].rpartition("-")[0] for label in (folder, name)}
    return tuple(pattern for repository in sorted(repositories) for pattern in RUNNERS.get(repository, ()))


def parse_policy(config: dict[str, object], where: str) -> GradingPolicy:
    """The policy in a parsed `task.toml`."""
    metadata = config.get("metadata")
    section = metadata.get("grading", {}) if isinstance(metadata, dict) else {}
    try:
        return GradingPolicy.model_validate(section)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(("metadata.grading", *map(str, first["loc"])))
        raise DataError(f"{where}: {name}: {first['msg']}: correct it") from error
