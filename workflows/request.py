"""What a command line asks for."""

import re
import time
from dataclasses import dataclass

from workflows.errors import CommandError
from workflows.settings import DEFAULT_PROFILE


@dataclass(frozen=True)
class Request:
    """One command line, taken apart."""

    verb: str
    profile: str | None
    run_id: str | None
    start_from: str | None
    words: tuple[str, ...]
    """What `status` and `logs` name."""
    settings: tuple[str, ...]
    """`section.key=value`."""

    @property
    def profile_name(self) -> str:
        """The profile, or the default one."""
        return self.profile or DEFAULT_PROFILE

    def make_run_id(self) -> str:
        """The run that was named, or a new one named after the profile and the time."""
        if self.run_id is None:
            stem = re.sub(r"[^a-z0-9]+", "-", self.profile_name.rpartition("/")[2].removesuffix(".yaml").lower())
            return f"{stem.strip('-')[:30]}-{time.strftime('%m%d-%H%M%S')}"
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?", self.run_id):
            raise CommandError(f"--run-id {self.run_id}: use lower-case letters, digits and dashes, at most 52")
        return self.run_id

    def command(self, run_id: str) -> str:
        """The command that goes on with this run."""
        parts = ["python workflows/submit.py local", f"--profile {self.profile_name}", f"--run-id {run_id}"]
        return " ".join([*parts, *self.settings])
