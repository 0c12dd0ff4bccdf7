"""Where things lie. Every path that crosses a step's boundary is relative to the workspace root."""

import os
from dataclasses import dataclass
from pathlib import Path

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
