"""What lies on the volumes that a run starts from, and whether they have room for what it will write."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from agentic.cluster.quantities import as_gib
from agentic.cluster.troubles import Trouble, make_trouble
from agentic.errors import PermanentError
from agentic.models.completeness import find_problems
from agentic.models.settings import ModelSettings, PathModel
from agentic.tasks.manifest import read_manifest
from agentic.tasks.settings import DataSettings, FolderData, RowsData
from steps.machine import GIB, free_disk_gib


def find_volume_troubles(
    root: Path, data: DataSettings, model: ModelSettings, checkpoint_bytes: float
) -> Iterator[Trouble]:
    """`root` is the workspace."""
    yield from _of_model(model)
    yield from _of_data(data)
    free = free_disk_gib(root / "runs") * GIB
    if free < checkpoint_bytes:
        message = f"{as_gib(Decimal(free))} free, and the checkpoints of this run take about "
        remedy = "make the claim larger, delete old runs, or lower train.keep_checkpoints"
        message += as_gib(Decimal(checkpoint_bytes))
        yield make_trouble("claim-too-small", f"volume of {root / 'runs'}", message, remedy=remedy)


def describe_model(root: Path, model: ModelSettings) -> str:
    """How complete the model's folder in the workspace is, in one line."""
    folder = root / "models" / model.name
    if not folder.is_dir():
        return f"model {model.name} is not there yet: download-model makes it"
    problems = find_problems(folder)
    if not problems:
        return f"model {model.name} is there and complete"
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"model {model.name} is not complete ({problems[0]}{more}): download-model goes on"


def describe_data(root: Path, data: DataSettings) -> str:
    """The same of the data set's folder."""
    folder = root / "datasets" / data.name
    if not folder.is_dir():
        return f"data set {data.name} is not there yet: download-data makes it"
    try:
        manifest = read_manifest(folder)
    except PermanentError as error:
        return f"data set {data.name} is not complete: {error}"
    if manifest is None:
        return f"data set {data.name} is not complete: download-data goes on"
    tasks = sorted({task for names in manifest.splits.values() for task in names})
    missing = [task for task in tasks if not (folder / "tasks" / task).is_dir()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"data set {data.name} lacks the task {missing[0]}{more}, which its manifest names: delete {folder}"
    return f"data set {data.name} is there and complete, {len(tasks)} tasks"


def _of_model(model: ModelSettings) -> Iterator[Trouble]:
    """One that is used where it lies; any other is completed by download-model."""
    if not isinstance(model, PathModel):
        return
    folder = Path(model.path)
    if not folder.is_dir():
        yield make_trouble("path-missing", "model.path", f"{folder} is no folder")
    elif problems := find_problems(folder):
        remedy = "copy it again, or name another folder in model.path"
        yield make_trouble("model-incomplete", f"model in {folder}", "; ".join(problems[:3]), remedy=remedy)


def _of_data(data: DataSettings) -> Iterator[Trouble]:
    if not isinstance(data, FolderData | RowsData):
        return
    path = Path(data.path)
    if not path.exists():
        yield make_trouble("path-missing", "data.path", f"{path} is not there")
    elif isinstance(data, FolderData) and not any((one / "task.toml").is_file() for one in path.iterdir()):
        remedy = "name a folder whose subfolders are Harbor tasks, each with a task.toml (docs/tasks.md)"
        yield make_trouble("data-incomplete", "data.path", f"{path} holds no task", remedy=remedy)
