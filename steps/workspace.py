"""Where things lie. Every path that crosses a step's boundary is relative to the workspace root."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "AGENTIC_WORKSPACE"
"""Overrides the workspace root; `./workspace` without it."""


@dataclass(frozen=True)
class Workspace:
    """The workspace as one run sees it."""

    root: Path
    run_id: str

    @property
    def run_dir(self) -> Path:
        """Everything that only this run has."""
        return self.root / "runs" / self.run_id

    @property
    def store_dir(self) -> Path:
        """The root-folder store that sandboxes mount."""
        return self.root / "images"

    def relative(self, path: Path) -> str:
        """How a path is named in inputs and outputs."""
        return str(path.relative_to(self.root))


def open_workspace(run_id: str) -> Workspace:
    """The workspace that the environment names."""
    return Workspace(Path(os.environ.get(VARIABLE) or "workspace").absolute(), run_id)


def write_atomically(path: Path, content: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, whatever happens in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
