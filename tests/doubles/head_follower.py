"""A step that does one job on the head of a RayCluster, as a process that tests can kill.

    python tests/doubles/head_follower.py CLUSTER.json JOB.json

Everything is the product's (`steps.ray_head.work_on_head`) but the step around it: no inputs, no marker, no lock on the
shared folders, so that a test can hold these and with them the job. Prints progress and the job's log; ends with 0, 75
or 78, as a step does.
"""

import signal
import sys
from pathlib import Path

from agentic.cluster.settings import ClusterSettings
from agentic.errors import AgenticError
from agentic.training.head_job import HeadJob
from steps import failures
from steps.contract import Step, sigterm_raises
from steps.output import Progress
from steps.ray_head import work_on_head
from steps.workspace import Workspace


class Told(Progress):
    """Progress that is printed as well."""

    def __call__(self, done: int, total: int, message: str) -> None:
        super().__call__(done, total, message)
        print(f"{done}/{total} {message}", flush=True)  # noqa: T201 - the test reads it


def main() -> int:
    cluster = ClusterSettings.model_validate_json(Path(sys.argv[1]).read_text())
    job = HeadJob.model_validate_json(Path(sys.argv[2]).read_text())
    workspace = Workspace(job.job.workspace, job.job.run_id)
    step = Step(workspace, Told(workspace.run_dir / "progress" / "train.json"), on_argo=True)
    try:
        with sigterm_raises():
            print(work_on_head(cluster, job, step).line, flush=True)  # noqa: T201
    except AgenticError as error:
        failure = failures.classify(error)
        print(failure.line, flush=True)  # noqa: T201
        return failure.exit_code
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise SystemExit(main())
