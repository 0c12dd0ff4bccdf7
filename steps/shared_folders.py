"""Data sets and models lie in folders that all runs of a workspace share; here a step holds them while it reads them.

A run with other settings waits until nobody reads the folder before it replaces it. Between two steps nobody reads, so
a step first makes sure that the folder is still the one that its own run made.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from agentic.errors import PermanentError
from agentic.files import locked_folder
from agentic.tasks.manifest import read_manifest
from steps.contract import Step
from steps.markers import newest_outputs


@contextmanager
def reading(step: Step, data_dir: str, model_dir: str | None = None) -> Iterator[None]:
    """Keep the folders as they are.

    Raises:
        PermanentError: another run has replaced one of them.
    """
    with ExitStack() as held:
        held.enter_context(_reading(step, data_dir))
        _require_own_data(step, data_dir)
        if model_dir is not None:
            held.enter_context(_reading(step, model_dir))
            _require_own_model(step, model_dir)
        yield


@contextmanager
def _reading(step: Step, folder: str) -> Iterator[None]:
    def on_wait() -> None:
        step.progress(0, 1, f"waiting for another run that makes {folder}")

    with locked_folder(step.workspace.root / folder, on_wait, exclusive=False):
        yield


def _require_own_data(step: Step, folder: str) -> None:
    made = newest_outputs(step.workspace.run_dir, "download-data", data_dir=folder)
    manifest = read_manifest(step.workspace.root / folder)
    if made is not None and (manifest is None or manifest.recipe_sha256 != made.get("recipe_sha256")):
        raise PermanentError(_replaced(folder, "download-data", "data.name"))


def _require_own_model(step: Step, folder: str) -> None:
    from agentic.models.prepare import find_record

    made = newest_outputs(step.workspace.run_dir, "download-model", model_dir=folder)
    if made is not None and find_record(step.workspace.root / folder, made.get("recipe_sha256", "")) is None:
        raise PermanentError(_replaced(folder, "download-model", "model.name"))


def _replaced(folder: str, step: str, setting: str) -> str:
    return f"{folder} is not what this run made: start again from {step}, or give each run its own {setting}"
