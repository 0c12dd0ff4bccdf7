"""Makes the data set: tasks in Harbor's format, their split, and the parquet files that verl reads."""

from pathlib import Path
from typing import Any, ClassVar

from agentic.tasks.manifest import read_manifest
from agentic.tasks.settings import DataSettings
from steps import contract
from steps.command import main
from steps.contract import Step, StepInput, StepOutput


class DownloadDataInput(StepInput):
    """Which tasks."""

    STEP: ClassVar[str] = "download-data"
    EXAMPLE: ClassVar[dict[str, Any]] = {
        "run_id": "try",
        "data": {"source": "mutation", "train": 16, "same_template": 4, "new_template": 2},
    }

    data: DataSettings
    """The tasks and their split."""


class DownloadDataOutput(StepOutput):
    """The data set's place and size."""

    data_dir: str
    """Folder of the data set."""
    tasks: int
    """Tasks in all splits."""
    recipe_sha256: str
    """Digest of the settings and the code that made it; the folder's manifest repeats it."""

    def artifacts(self) -> list[str]:
        return [f"{self.data_dir}/manifest.json", f"{self.data_dir}/train.parquet"]

    def doubt(self, root: Path) -> str | None:
        manifest = read_manifest(root / self.data_dir)
        if manifest is not None and manifest.recipe_sha256 != self.recipe_sha256:
            return f"{self.data_dir} is another run's by now"
        return super().doubt(root)


def run(inputs: DownloadDataInput) -> DownloadDataOutput:
    """Make the data set, or find that it is there."""
    return contract.execute(inputs, _download, DownloadDataOutput)


def _download(inputs: DownloadDataInput, step: Step) -> DownloadDataOutput:
    from agentic.tasks.prepare import prepare

    out = step.workspace.root / "datasets" / inputs.data.name
    out.parent.mkdir(parents=True, exist_ok=True)
    summary = prepare(inputs.data, out, step.progress)
    tasks = sum(summary.counts.values())
    counts = ", ".join(f"{split} {count}" for split, count in summary.counts.items())
    step.progress(tasks, tasks, f"{counts}{' (there already)' if summary.reused else ''}")
    return DownloadDataOutput(
        data_dir=step.workspace.relative(out),
        tasks=tasks,
        recipe_sha256=summary.recipe_sha256,
    )


if __name__ == "__main__":
    raise SystemExit(main(DownloadDataInput, run))
