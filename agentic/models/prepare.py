"""Makes a model folder from settings.

    <out>/config.json  *.safetensors  tokenizer files  agentic.json

The folder appears by one rename, complete, or not at all. Made again with the same settings it is left as it is; with
other settings it is replaced, as soon as no other run makes or reads it. A download continues in a folder beside it.
What a complete model folder is, `completeness.py` says.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from agentic.files import discard, locked_folder, publish_folder
from agentic.models.completeness import count_parameters, find_problems, require_complete
from agentic.models.errors import ModelError
from agentic.models.settings import (
    HuggingFaceModel,
    ModelScopeModel,
    ModelSettings,
    PathModel,
    SmolLM2Model,
    TinyModel,
)
from agentic.tasks.manifest import hash_recipe

type OnProgress = Callable[[int, int, str], None]
"""Called with (done, total, message)."""

RECORD = "agentic.json"
"""Says what made the folder; written last, inside the folder."""


class ModelSummary(BaseModel):
    """What `prepare` made or found."""

    model_config = ConfigDict(frozen=True)

    name: str
    parameters: int
    recipe_sha256: str
    seconds: float
    reused: bool
    """True when the folder was there already."""
    phases: dict[str, float]
    """Seconds of each phase when it was made, for sources that have phases."""


class Record(BaseModel):
    """Content of `agentic.json`."""

    model_config = ConfigDict(frozen=True)

    source: str
    recipe_sha256: str
    parameters: int
    phases: dict[str, float] = {}
    figures: dict[str, float] = {}


def prepare(settings: ModelSettings, data_dir: Path | None, out: Path, on_progress: OnProgress) -> ModelSummary:
    """Make `out`, or find that it is there already.

    `data_dir` is the data set that the policy will train on. No source reads it today: the warm start generates its
    own functions, so that nothing of a data set's held-out splits can leak into it.
    """
    started = time.monotonic()
    recipe = _make_recipe(settings)
    record = find_record(out, recipe)
    if record is not None:
        return _summarize(settings, record, started, reused=True)

    def on_wait() -> None:
        line = (
            f"waiting for another run that makes or reads {out.name}; another model.name would be a folder of its own"
        )
        on_progress(0, 1, line)

    with locked_folder(out, on_wait, exclusive=True):
        record = find_record(out, recipe)
        if record is not None:  # that run wanted the same
            return _summarize(settings, record, started, reused=True)
        return _summarize(settings, _make(settings, recipe, out, on_progress), started, reused=False)


def find_record(out: Path, recipe: str) -> Record | None:
    """The record of the folder, if it holds a whole model that this recipe made."""
    record = _read_record(out)
    return record if record is not None and record.recipe_sha256 == recipe and not find_problems(out) else None


def _summarize(settings: ModelSettings, record: Record, started: float, *, reused: bool) -> ModelSummary:
    return ModelSummary(
        name=settings.name,
        parameters=record.parameters,
        recipe_sha256=record.recipe_sha256,
        seconds=round(time.monotonic() - started, 3),
        reused=reused,
        phases=record.phases,
    )


def _make_recipe(settings: ModelSettings) -> str:
    if isinstance(settings, PathModel):
        return _recipe_of_link(Path(settings.path).resolve())
    return hash_recipe(settings, *_code_of(settings))


def _recipe_of_link(target: Path) -> str:
    """A link holds no record; what it points to says all."""
    return hashlib.sha256(f"link\0{target}".encode()).hexdigest()


def _code_of(settings: ModelSettings) -> tuple[Path, ...]:
    """Folders of code that decide what a generated policy is."""
    here = Path(__file__).parent
    if not isinstance(settings, TinyModel):
        return ()
    lesson = "mutation" if settings.lesson == "repair" else "problems"
    return (here / "tiny", here.parent / "tasks" / lesson)


def _make(settings: ModelSettings, recipe: str, out: Path, on_progress: OnProgress) -> Record:
    if isinstance(settings, PathModel):
        return _link(settings, recipe, out)
    partial = out.with_name(f".{out.name}.partial")
    if isinstance(settings, TinyModel | SmolLM2Model) or partial.is_symlink():
        discard(partial)  # a download is continued, what is made here starts anew, a link leads into others' folders
    partial.mkdir(parents=True, exist_ok=True)
    phases: dict[str, float] = {}
    figures: dict[str, float] = {}
    match settings:
        case TinyModel():
            phases, figures = _make_tiny(settings, partial, on_progress)
        case SmolLM2Model():
            from agentic.models.smollm2 import convert_smollm2

            on_progress(0, 1, "converting SmolLM2-135M-Instruct")
            convert_smollm2(settings, partial)
        case ModelScopeModel() | HuggingFaceModel():
            _download(settings, partial, on_progress)
    require_complete(partial)
    record = Record(
        source=settings.source,
        recipe_sha256=recipe,
        parameters=count_parameters(partial),
        phases=phases,
        figures=figures,
    )
    (partial / RECORD).write_text(record.model_dump_json(indent=1) + "\n")
    publish_folder(partial, out)
    on_progress(1, 1, f"{settings.name}: {record.parameters:,} parameters")
    return record


def _make_tiny(settings: TinyModel, folder: Path, on_progress: OnProgress) -> tuple[dict[str, float], dict[str, float]]:
    from agentic.models.tiny.warm_start import make_policy, save_policy

    policy = make_policy(settings, on_progress)
    save_policy(policy, folder)
    phases = {"demonstrations": policy.data_seconds, "training": policy.training_seconds}
    return {name: round(seconds, 1) for name, seconds in phases.items()}, {"loss": round(policy.loss, 4)}


def _download(settings: ModelScopeModel | HuggingFaceModel, folder: Path, on_progress: OnProgress) -> None:
    from agentic.models.hubs import download_from_huggingface, download_from_modelscope

    on_progress(0, 1, f"downloading {settings.id}")
    if isinstance(settings, ModelScopeModel):
        download_from_modelscope(settings, folder)
    else:
        download_from_huggingface(settings, folder)


def _link(settings: PathModel, recipe: str, out: Path) -> Record:
    """A link to the folder, replaced by rename; the folder itself is not touched."""
    folder = Path(settings.path).resolve()
    if not folder.is_dir():
        raise ModelError(f"model.path {settings.path} is no folder: give a Hugging Face model folder")
    problems = find_problems(folder)
    if problems:
        raise ModelError(f"model.path {settings.path} is no whole model: {problems[0]}")
    partial = out.with_name(f".{out.name}.partial")
    discard(partial)
    partial.symlink_to(folder, target_is_directory=True)
    publish_folder(partial, out)
    return Record(source=settings.source, recipe_sha256=recipe, parameters=count_parameters(folder))


def _read_record(out: Path) -> Record | None:
    path = out / RECORD
    if out.is_symlink():
        target = out.resolve()
        return Record(source="path", recipe_sha256=_recipe_of_link(target), parameters=count_parameters(target))
    if not path.is_file():
        return None
    try:
        return Record.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise ModelError(f"{path} cannot be read: delete {out}") from error
