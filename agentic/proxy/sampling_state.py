"""Whether sampling is paused, and for which weights, as the processes of a fleet leave it to each other.

Each worker writes what it was told before it says that it did it, so one that is started again knows what all know. The
file lives as long as the fleet: a fleet that is started anew is told by whoever trains.
"""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import JournalError
from .models import Version


class SamplingState(BaseModel):
    """What `pause` and `resume` said last."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paused: bool = False
    version: Version | None = None


class StateFile:
    """A file that is always whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> SamplingState:
        """What was kept; as at the start if nothing was."""
        try:
            return SamplingState.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return SamplingState()
        except (OSError, ValidationError) as error:
            raise JournalError(f"cannot read {self._path}: {error}: start the fleet anew") from error

    def write(self, state: SamplingState) -> None:
        """Keep it."""
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(state.model_dump_json())
            draft.replace(self._path)
        except OSError as error:
            raise JournalError(f"cannot write {self._path}: {error.strerror}: free space there") from error
