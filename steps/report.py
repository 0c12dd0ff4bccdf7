"""Writes the run's report from what its folder holds; works for a run that broke, too."""

from typing import Any, ClassVar

from steps import contract
from steps.command import main
from steps.contract import Step, StepInput, StepOutput


class ReportInput(StepInput):
    """Nothing but the run: the report reads its folder."""

    STEP: ClassVar[str] = "report"
    REPLAYED: ClassVar[bool] = False
    EXAMPLE: ClassVar[dict[str, Any]] = {"run_id": "try"}


class ReportOutput(StepOutput):
    """Where it is."""

    report: str
    """A self-contained HTML file, relative to the workspace."""


def run(inputs: ReportInput) -> ReportOutput:
    """Write the report."""
    return contract.execute(inputs, _write, ReportOutput)


def _write(inputs: ReportInput, step: Step) -> ReportOutput:
    from agentic import report

    path = report.write(step.workspace.run_dir)
    step.progress(1, 1, step.workspace.relative(path))
    return ReportOutput(report=step.workspace.relative(path))


if __name__ == "__main__":
    raise SystemExit(main(ReportInput, run))
