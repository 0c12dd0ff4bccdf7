"""A job for the head of a Ray cluster as it lies on the volume: what is asked, how far it is, how it ended.

    runs/<run-id>/jobs/<submission-id>/job.json       what the step asked for, written before it is submitted
                                       progress.json  the last report
                                       result.json    how it ended, written last and once

The step's pod writes the first, the job the others, so each file has one writer. Pure but for reading and writing them.
"""

import hashlib
import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from agentic import files
from agentic.training.jobs import EvaluationSummary, TrainJob, TrainSummary

RUN_KEY, WORK_KEY = "agentic-rl/run", "agentic-rl/step"
"""Of a job's metadata: by them a run's jobs are known on its head."""

OUTPUT_VARIABLE = "AGENTIC_CONTAINER_OUTPUT"
"""Names a file that a job on the head prints to as well: the output of the container's first process, so that
`kubectl logs` of the head shows what Ray would keep in a file of its own."""

_DIGEST_CHARACTERS = 10


class HeadJob(BaseModel):
    """What the head is asked to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    work: Literal["train", "evaluate"]
    job: TrainJob
    summary: TrainSummary | None = None
    """Where training ended; what `evaluate` measures."""

    @property
    def prefix(self) -> str:
        """Of the submission ids of all attempts at this very work."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:_DIGEST_CHARACTERS]
        return f"{self.work}-{self.job.run_id}-{digest}-"

    @property
    def metadata(self) -> dict[str, str]:
        return {RUN_KEY: self.job.run_id, WORK_KEY: self.work}


class HeadProgress(NamedTuple):
    """The last report of a job."""

    done: int
    total: int
    message: str


class HeadResult(BaseModel):
    """How a job ended, in its own words; a job that was killed leaves none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    exit_code: int
    """Of a step: 0, 75 = trying again may help, 78 = it cannot, 143 = told to end."""
    line: str
    """What went wrong, on one line."""
    trained: TrainSummary | None = None
    evaluated: EvaluationSummary | None = None


class JobFolder:
    """The files of one submission. A volume that cannot be read at the moment has nothing: the other side replaces
    files while they are read, which some network volumes answer with an error (ESTALE)."""

    def __init__(self, run_dir: Path, submission_id: str) -> None:
        self._folder = run_dir / "jobs" / submission_id

    @property
    def job_file(self) -> Path:
        return self._folder / "job.json"

    @property
    def command(self) -> str:
        """The shell command that does the work, wherever volume and project are; some images have no `python`."""
        program = '"$(command -v python || command -v python3)"'
        return f"exec {program} -m steps.on_head --job {shlex.quote(str(self.job_file))}"

    def write_job(self, job: HeadJob) -> None:
        files.write_text(self.job_file, job.model_dump_json(indent=1))

    def read_job(self) -> HeadJob:
        """What was asked for. Raises OSError and ValidationError."""
        return HeadJob.model_validate_json(self.job_file.read_text())

    def write_progress(self, progress: HeadProgress) -> None:
        files.write_json(self._folder / "progress.json", list(progress))

    def write_result(self, result: HeadResult) -> None:
        files.write_text(self._folder / "result.json", result.model_dump_json(indent=1))

    def read_progress(self) -> HeadProgress | None:
        """The last report, if there is one."""
        try:
            done, total, message = json.loads((self._folder / "progress.json").read_text())
        except (OSError, ValueError):
            return None  # not yet, not now, or a volume that shows a file before its content
        return HeadProgress(int(done), int(total), str(message))

    def read_result(self) -> HeadResult | None:
        """How it ended, if it said so."""
        try:
            return HeadResult.model_validate_json((self._folder / "result.json").read_text())
        except (OSError, ValidationError):
            return None


def in_order(prefix: str, names: Iterable[str]) -> list[str]:
    """Those submission ids that are attempts at the work of this prefix, the first attempt first."""
    same = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return sorted((name for name, tail in same.items() if tail.isdigit()), key=lambda name: int(same[name]))


def next_id(prefix: str, known: Iterable[str]) -> str:
    """The submission id of the next attempt: Ray takes each only once."""
    last = in_order(prefix, known)[-1:]
    return f"{prefix}{int(last[0].removeprefix(prefix)) + 1 if last else 1}"


def attempts(run_dir: Path) -> list[str]:
    """Submission ids that this run has used, on whichever head: each has a folder."""
    folder = run_dir / "jobs"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
