"""What makes a report impossible.

PermanentError
└── ReportError           the report cannot be written
    └── MalformedFile     a file of the run holds what it must not; names the file and, where it has lines, the line
"""

from pathlib import Path

from agentic.errors import PermanentError


class ReportError(PermanentError):
    """The report cannot be written."""


class MalformedFile(ReportError):
    """A file of the run is there but is not what its contract says."""

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        place = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{place}: {reason}: repair or remove it, then write the report again")
