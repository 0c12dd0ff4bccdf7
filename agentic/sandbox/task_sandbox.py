"""What a task says about its sandbox, in `[metadata.sandbox]` of its `task.toml`; Harbor leaves metadata to readers.

    [metadata.sandbox]
    read_only_root = true
    writable_paths = ["/app"]

A task whose programs write nowhere else can have a root that nothing inside changes. `/tmp`, and the folders that
Harbor brings tests to and takes results from, can always be written.
"""

import posixpath
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationError

from agentic.sandbox.errors import SandboxSetupError
from agentic.settings import Settings

CONFIG = "task.toml"


def _plain_folder(path: str) -> str:
    if not path.startswith("/") or path == "/" or posixpath.normpath(path) != path:
        raise ValueError(f"{path!r} is no folder inside: write an absolute path such as /app")
    return path


class TaskSandbox(Settings):
    """A task's own words; what it does not say is the run's to decide."""

    read_only_root: bool | None = None
    """Whether only `writable_paths` can be written; None is `sandbox.read_only_root`."""
    writable_paths: tuple[Annotated[str, AfterValidator(_plain_folder)], ...] = ()
    """Folders that the task writes to, such as `/app`; in pods they start empty. Of no matter where the whole root can
    be written."""


def read_task_sandbox(task_dir: Path) -> TaskSandbox:
    """Of a task's folder; the defaults when it says nothing. Raises SandboxSetupError for what is not valid."""
    path = task_dir / CONFIG
    if not path.exists():
        return TaskSandbox()
    try:
        metadata = tomllib.loads(path.read_text(encoding="utf-8")).get("metadata")
    except (OSError, ValueError) as error:
        raise SandboxSetupError(f"{path} cannot be read ({error}): correct it") from error
    section = metadata.get("sandbox", {}) if isinstance(metadata, dict) else {}
    try:
        return TaskSandbox.model_validate(section)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(("metadata.sandbox", *map(str, first["loc"])))
        raise SandboxSetupError(f"{path}: {name}: {first['msg']}: correct it") from error
