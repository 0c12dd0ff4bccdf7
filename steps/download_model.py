"""Gets the policy to start from: fetched and verified, or made and warm-started."""

from pathlib import Path
from typing import Any, ClassVar

from agentic.models.settings import ModelSettings
from steps import contract
from steps.command import main
from steps.contract import Step, StepInput, StepOutput


class DownloadModelInput(StepInput):
    """Which model; the data set serves policies that are made here."""

    STEP: ClassVar[str] = "download-model"
    EXAMPLE: ClassVar[dict[str, Any]] = {
        "run_id": "try",
        "model": {"source": "tiny"},
        "data_dir": "datasets/repair",
    }

    model: ModelSettings
    """The policy."""
    data_dir: str
    """Folder of the data set; read only by policies that are made from tasks."""


class DownloadModelOutput(StepOutput):
    """The model's place."""

    model_dir: str
    """A Hugging Face folder."""
    recipe_sha256: str
    """Digest of the settings and the code that made it; the folder's record repeats it."""

    def artifacts(self) -> list[str]:
        return [f"{self.model_dir}/config.json"]

    def doubt(self, root: Path) -> str | None:
        from agentic.models.prepare import find_record

        if find_record(root / self.model_dir, self.recipe_sha256) is None:
            return f"{self.model_dir} is not whole, or another run's by now"
        return super().doubt(root)


def run(inputs: DownloadModelInput) -> DownloadModelOutput:
    """Get the model, or find that it is there, complete."""
    return contract.execute(inputs, _download, DownloadModelOutput)


def _download(inputs: DownloadModelInput, step: Step) -> DownloadModelOutput:
    from agentic.models.prepare import prepare

    root = step.workspace.root
    out = root / "models" / inputs.model.name
    out.parent.mkdir(parents=True, exist_ok=True)
    summary = prepare(inputs.model, root / inputs.data_dir, out, step.progress)
    return DownloadModelOutput(model_dir=step.workspace.relative(out), recipe_sha256=summary.recipe_sha256)


if __name__ == "__main__":
    raise SystemExit(main(DownloadModelInput, run))
