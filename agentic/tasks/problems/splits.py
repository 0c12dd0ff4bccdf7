"""The three splits of a mathematics set: train, the quick validation that decides, and a test that decides nothing."""

from importlib.resources import as_file, files
from pathlib import Path

from agentic.tasks import splits
from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import TaskFolder
from agentic.tasks.problems import generator, sources
from agentic.tasks.problems.problem import Problem, make_task, prompt_of
from agentic.tasks.settings import MathData

VALIDATION, TEST = "validation", "test"
SHIPPED = "shipped.jsonl"


def make_splits(settings: MathData, download: Path) -> dict[str, list[TaskFolder]]:
    """Split → task folders, with ids that name split and number."""
    hints = settings.origin != "generated"
    return {
        split: [
            make_task(problem, f"{split}-{index:05}", prompt_of(problem, hints=hints, tools=settings.tools))
            for index, problem in enumerate(problems)
        ]
        for split, problems in _problems(settings, download).items()
    }


def _problems(settings: MathData, download: Path) -> dict[str, list[Problem]]:
    if settings.origin == "generated":
        return _generated(settings)
    train, held_out = _published(settings, download)
    parts = {
        splits.TRAIN: train[: settings.train],
        VALIDATION: held_out[: settings.validation],
        TEST: held_out[settings.validation : settings.validation + settings.test],
    }
    if not parts[splits.TRAIN] or not parts[VALIDATION]:
        raise DataError(
            f"data.origin {settings.origin} gave {len(train)} problems to train on and {len(held_out)} held-out ones: "
            "both are needed, lower data.validation or give more"
        )
    return parts


def _generated(settings: MathData) -> dict[str, list[Problem]]:
    held_out = generator.generate(settings.validation + settings.test, f"held-{settings.held_out_seed}", held_out=True)
    made = {
        splits.TRAIN: generator.generate(settings.train, f"train-{settings.seed}"),
        VALIDATION: held_out[: settings.validation],
        TEST: held_out[settings.validation :],
    }
    return {split: [one.problem for one in problems] for split, problems in made.items()}


def _published(settings: MathData, download: Path) -> tuple[list[Problem], list[Problem]]:
    """Training and held-out problems; a set without a test split holds its own out by the seed."""
    if settings.origin == "shipped":
        with as_file(files("agentic.tasks.problems").joinpath(SHIPPED)) as path:
            return _held_out_by_seed(sources.read_all(path), settings)
    if settings.path is None:
        folder = sources.download(settings.origin, download, settings.endpoint)
    else:
        folder = Path(settings.path)
        if not folder.exists():
            raise DataError(f"data.path {settings.path} is not there: give a file or folder of parquet or jsonl")
    held_out = [] if folder.is_file() else sources.read_split(folder, TEST)
    if held_out:
        return sources.read_split(folder, splits.TRAIN), held_out
    return _held_out_by_seed(sources.read_all(folder), settings)


def _held_out_by_seed(problems: list[Problem], settings: MathData) -> tuple[list[Problem], list[Problem]]:
    by_question = {problem.question: problem for problem in problems}
    wanted = min(settings.validation + settings.test, len(by_question) // 2)
    split = splits.split_ids(by_question, wanted, settings.held_out_seed)
    return [by_question[q] for q in split[splits.TRAIN]], [by_question[q] for q in split[splits.HELD_OUT]]
