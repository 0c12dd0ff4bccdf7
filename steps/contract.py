"""The one wrapper around every step, shared by Hera's runner (`steps.NAME:run`) and `python -m steps.NAME`.

It promises:
- the same inputs find the done marker and replay its outputs while what they name is there; nothing is done twice;
- the marker is written last, so killing a step at any moment and running it again is safe;
- two copies with the same inputs never run at once;
- whatever goes wrong ends as one line and exit code 75 (try again) or 78 (do not), never as exit code 1.

Step modules must not postpone annotations (`from __future__ import annotations`): Hera reads them as types.
"""

import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, ClassVar, Self

from hera.workflows.io import Input, Output
from pydantic import ConfigDict, Field, ValidationError

from steps import failures
from steps.markers import Marker
from steps.output import Progress, leave_message, logged
from steps.workspace import Workspace, open_workspace

TARGET_VARIABLE = "AGENTIC_TARGET"
"""`argo` inside a pod of the workflow; anything else means that this machine does all of the work."""

SUMMARY_CHARACTERS = 300
"""It is kept in the workflow's own object, which has to stay small."""

RunId = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?$")]
"""Lower case, digits and dashes: it becomes part of object names and labels."""


class StepInput(Input):  # type: ignore[misc]
    """Base of all inputs: small values and settings sections; each field is one parameter of the workflow."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    STEP: ClassVar[str]
    """Name of the step in the workflow, its logs and its markers."""

    REPLAYED: ClassVar[bool] = True
    """Whether a done marker stands for the work; false for steps that look at the world anew each time."""

    EXAMPLE: ClassVar[Mapping[str, Any]]
    """Inputs for `--help`."""

    run_id: RunId
    """The run, a folder below `runs/`."""

    @property
    def instance(self) -> str:
        """Name of the log and the progress file; differs from the step's only in a fan-out."""
        return self.STEP

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Hera's runner builds inputs outside of `run`; bad ones must not become its exit code 1."""
        try:
            return super().model_validate(_with_environment(obj), **options)  # type: ignore[no-any-return]
        except ValidationError as error:
            line = f"{cls.STEP}: {failures.describe_validation(error)}"
            leave_message(line)
            sys.stderr.write(line + "\n")
            raise SystemExit(failures.PERMANENT) from error


def from_environment(field: str) -> str:
    """What stands for an input whose value, as JSON, is in the environment."""
    return f"$AGENTIC_INPUT_{field.upper()}"


def _with_environment(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    named = {name for name, value in given.items() if value == from_environment(name)}
    found = {name: json.loads(os.environ[from_environment(name)[1:]]) for name in named}
    return {**given, **found}


class StepOutput(Output):  # type: ignore[misc]
    """Base of all outputs; each field is one output parameter."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    summary: str = ""
    """What came of it, in one line; a step that says nothing else ends with its last progress message."""

    def artifacts(self) -> list[str]:
        """Paths relative to the workspace without which a replay would be a lie."""
        return []

    def doubt(self, root: Path) -> str | None:
        """Why a replay would be a lie, if it would; steps that fill a folder shared by runs look into it."""
        gone = [path for path in self.artifacts() if not (root / path).exists()]
        return f"{gone[0]} is gone" if gone else None


@dataclass(frozen=True)
class Step:
    """What a step's work is given beside its inputs."""

    workspace: Workspace
    progress: Progress
    on_argo: bool


def execute[I: StepInput, O: StepOutput](inputs: I, work: Callable[[I, Step], O], output: type[O]) -> O:
    """Do a step's work under the contract; ends the process with 75, 78, 130 or 143 when it fails."""
    name = inputs.instance
    workspace = open_workspace(inputs.run_id)
    log = workspace.run_dir / "logs" / f"{name}.log"
    # Twice: the inner one is heard in the log, the outer one hears of a log that cannot be written.
    with _failing_in_one_line(name), sigterm_raises(), logged(log), _failing_in_one_line(name):
        return _execute(inputs, work, output, workspace)


def _execute[I: StepInput, O: StepOutput](
    inputs: I, work: Callable[[I, Step], O], output: type[O], workspace: Workspace
) -> O:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    marker = Marker(workspace.run_dir, inputs.STEP, inputs.model_dump(mode="json", exclude={"run_id"}))
    progress = Progress(workspace.run_dir / "progress" / f"{inputs.instance}.json")
    with marker.exclusive() as attempt:
        done = _replay(inputs, marker, output, workspace)
        if done is not None:
            return done
        started = time.time()
        result = work(inputs, Step(workspace, progress, os.environ.get(TARGET_VARIABLE) == "argo"))
        ended = time.time()
        result.summary = (result.summary or progress.message)[:SUMMARY_CHARACTERS]
        marker.write(result.model_dump(mode="json", exclude={"exit_code", "result"}), attempt, started, ended)
    result.result = f"{inputs.instance}: done in {ended - started:.1f} s"
    return result


def _replay[O: StepOutput](inputs: StepInput, marker: Marker, output: type[O], workspace: Workspace) -> O | None:
    found = marker.read() if inputs.REPLAYED else None
    if found is None:
        return None
    try:
        outputs: O = output.model_validate(found["outputs"])
    except ValidationError:
        sys.stdout.write(f"{inputs.instance}: its marker is of another version, doing the step again\n")
        return None
    doubt = outputs.doubt(workspace.root)
    if doubt:
        sys.stdout.write(f"{inputs.instance}: {doubt}, doing the step again\n")
        return None
    line = f"done before, in {found['seconds']:.1f} s"
    leave_message(line)
    outputs.result = f"{inputs.instance}: {line}"
    return outputs


@contextmanager
def _failing_in_one_line(instance: str) -> Iterator[None]:
    """Turn whatever escapes into an exit code, and say once what went wrong where it is looked for."""
    try:
        yield
    except Exception as error:
        raise SystemExit(_report(instance, error)) from error
    except KeyboardInterrupt as error:
        raise SystemExit(_report(instance, error)) from error


def _report(instance: str, error: BaseException) -> int:
    failure = failures.classify(error)
    if not failure.expected:
        traceback.print_exception(error, file=sys.stderr)
    sys.stderr.write(f"{instance}: {failure.line}\n")
    sys.stderr.flush()
    leave_message(failure.line)
    return failure.exit_code


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let a step that is told to end run its clean-up."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(failures.TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
