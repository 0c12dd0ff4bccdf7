"""What a command line asks for."""

import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from workflows.errors import CommandError
from workflows.settings import ALIASES, DEFAULT_PROFILE, PREFIX, profile_stem

SUBMIT = Path(__file__).with_name("submit.py")
"""The command line's program."""

KEPT = frozenset({"AGENTIC_WORKSPACE", *ALIASES})
"""Environment variables, beside those of settings, that a later start of the same run needs as well."""

RUN_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")
"""It becomes a folder, part of objects' names, and the value of a label that others are selected by."""

MAKERS = frozenset({"submit", "local", "render", "plan"})
"""Verbs that describe a new run by settings; `doctor` looks at what one would need."""

OPTIONS: Mapping[str, tuple[str, frozenset[str]]] = MappingProxyType(
    {
        "run_id": ("--run-id", MAKERS),
        "start_from": ("--start-from", MAKERS | {"resume"}),
        "follow": ("--watch", frozenset({"submit", "local", "watch", "logs", "retry", "resume"})),
        "objects": ("--objects", frozenset({"render"})),
        "json": ("--json", frozenset({"doctor", "explain"})),
    }
)
"""Field of a request -> the option, and the verbs that heed it."""

FREE = MAKERS | {"doctor", "resume"}
"""Verbs that take any setting. The others are about a run that has its settings: they heed those of `cluster` alone,
which say where it is."""


@dataclass(frozen=True)
class Request:
    """One command line, taken apart."""

    verb: str
    profile: str | None
    run_id: str | None
    start_from: str | None
    words: tuple[str, ...]
    """Runs and steps that verbs name."""
    settings: tuple[str, ...]
    """`section.key=value`."""
    target: str | None = None
    """`argo`, `local`, `slurm` or `skypilot`; `None` = where the verb, or the run that is named, belongs."""
    follow: bool = False
    """Whether `submit`, `retry` and `resume` watch what they started, and `logs` waits for more."""
    objects: str | None = None
    """Folder that `render` writes the cluster's objects into."""
    json: bool = False
    """Whether `doctor` and `explain` print JSON."""

    @property
    def profile_name(self) -> str:
        """The profile, or the default one."""
        return self.profile or DEFAULT_PROFILE

    def make_run_id(self) -> str:
        """The run that was named, or a new one named after the profile and the time."""
        if self.run_id is None:
            stem = re.sub(r"[^a-z0-9]+", "-", profile_stem(self.profile_name).lower()).strip("-")
            return f"{stem[:30] or 'run'}-{time.strftime('%m%d-%H%M%S')}"
        if not RUN_ID.fullmatch(self.run_id):
            raise CommandError(f"--run-id {self.run_id}: use lower-case letters, digits and dashes, at most 52")
        if re.search(r"-attempt-\d+$", self.run_id):
            raise CommandError(f"--run-id {self.run_id}: an attempt at another run is called so, take another ending")
        return self.run_id

    def require_heeded(self) -> None:
        """Nothing that was given is dropped without a word.

        Raises:
            CommandError: the verb does not heed an option or a setting.
        """
        for name, (option, verbs) in OPTIONS.items():
            if getattr(self, name) not in (None, False) and self.verb not in verbs:
                hint = (
                    f"name the run as {self.verb} RUN" if name == "run_id" else f"it is for {', '.join(sorted(verbs))}"
                )
                raise CommandError(f"{self.verb} does not heed {option}: {hint}")
        if self.target is not None and self.verb == "doctor":
            raise CommandError(f"{self.verb} does not heed --target: leave it out")
        if self.target not in (None, "local") and self.verb == "local":
            raise CommandError(f"local runs on this machine: --target {self.target} belongs to submit")
        unused = [word for word in self.settings if not word.removeprefix("--").startswith("cluster.")]
        if unused and self.verb not in FREE:
            raise CommandError(
                f"{self.verb} does not heed {unused[0]}: the run keeps its settings; "
                "resume RUN --from STEP takes others"
            )

    def require_run(self) -> str:
        """The run that a verb is about.

        Raises:
            CommandError: none is named, or something else as well.
        """
        if not self.words:
            raise CommandError(f"name a run: python3 workflows/submit.py {self.verb} RUN")
        if len(self.words) > 1:
            raise CommandError(f"'{self.words[1]}' is no setting: write section.key=value, such as train.steps=4")
        return checked_run(self.words[0])

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What of the environment are settings."""
        return {name: environment[name] for name in sorted(environment) if name in ALIASES or name.startswith(PREFIX)}

    def command(self, run_id: str, environment: Mapping[str, str]) -> str:
        """The shell command that goes on with this run from the same folder: all that was given, environment first."""
        kept = [name for name in sorted(environment) if name in KEPT or name.startswith(PREFIX)]
        assignments = [f"{name}={shlex.quote(environment[name])}" for name in kept]
        words = ["python3", os.path.relpath(SUBMIT), "local", "--profile", self.profile_name, "--run-id", run_id]
        words += ["--start-from", self.start_from] if self.start_from else []
        return " ".join([*assignments, shlex.join([*words, *self.settings])])

    def about(self, verb: str, run_id: str, namespace: str, *more: str) -> str:
        """The shell command for a verb about a run on the cluster, with all of this one that says where the run is."""
        where = [] if namespace == "default" else [f"cluster.namespace={namespace}"]
        where += [word for word in self.settings if word.removeprefix("--").startswith("cluster.argo_")]
        target = ["--target", "argo"] if self.target == "argo" else []
        return " ".join(["python3 workflows/submit.py", shlex.join([verb, run_id, *more, *target, *where])])


def checked_run(word: str) -> str:
    """A word that may be a run's name.

    Raises:
        CommandError: no run can be called so.
    """
    if not RUN_ID.fullmatch(word):
        raise CommandError(f"no run is called '{word}': names have lower-case letters, digits and dashes, at most 52")
    return word
