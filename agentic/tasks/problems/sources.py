"""Rows of published mathematics sets as problems: GSM8K, MATH, DAPO and what has verl's own row form.

A row's form is told by its columns, so that a local file of any of them can be read. Downloads are the hub's own
client's, into a folder that survives a cut connection.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agentic.tasks.errors import DataError, DownloadIncomplete
from agentic.tasks.parquet import read_rows
from agentic.tasks.problems.plain import boxed
from agentic.tasks.problems.problem import Problem

PATTERNS = ("*.parquet", "*.jsonl")


class HubSet(NamedTuple):
    """A data set of the hub."""

    repository: str
    folder: str = ""
    """Where in the repository; empty is anywhere."""


HUB_SETS: Mapping[str, HubSet] = {
    "gsm8k": HubSet("openai/gsm8k", "main"),
    "math": HubSet("verl-team/lighteval-MATH-preprocessed"),
    "dapo": HubSet("BytedTsinghua-SIA/DAPO-Math-17k"),
}
"""By the setting `data.origin`."""


def download(origin: str, folder: Path, endpoint: str | None) -> Path:
    """The set's files, in `folder`; calling again goes on.

    Raises:
        DataError: the hub does not have it.
        DownloadIncomplete: the connection was cut.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    wanted = HUB_SETS[origin]
    patterns = [f"{wanted.folder}/{pattern}" if wanted.folder else pattern for pattern in PATTERNS]
    try:
        snapshot_download(
            wanted.repository, repo_type="dataset", local_dir=folder, endpoint=endpoint, allow_patterns=patterns
        )
    except RepositoryNotFoundError as error:
        raise DataError(f"the hub has no {wanted.repository}: set data.path to a local copy of it") from error
    except (HfHubHTTPError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise DownloadIncomplete(
            f"downloading {wanted.repository} was cut ({reason}): run the step again to go on, or set data.path to a "
            "local copy"
        ) from error
    return folder / wanted.folder


def read_split(folder: Path, split: str) -> list[Problem]:
    """Problems of the files of a folder whose names hold the split's, in order; of a single file, all of them."""
    files = [folder] if folder.is_file() else sorted(path for pattern in PATTERNS for path in folder.rglob(pattern))
    named = [path for path in files if re.search(rf"(?:^|[-_.]){split}(?:[-_.]|$)", path.name)]
    return [problem for path in named for problem in problems_of(_rows(path), path)]


def read_all(folder: Path) -> list[Problem]:
    """Problems of every file, for sets that publish no split."""
    files = [folder] if folder.is_file() else sorted(path for pattern in PATTERNS for path in folder.rglob(pattern))
    return [problem for path in files for problem in problems_of(_rows(path), path)]


def problems_of(rows: Iterable[Mapping[str, Any]], path: Path) -> list[Problem]:
    """Each row as a problem; equal questions once, as DAPO's file repeats each a hundred times.

    Raises:
        DataError: a row has none of the known forms, or no answer.
    """
    found: dict[str, Problem] = {}
    for number, row in enumerate(rows):
        problem = _problem(row)
        if problem is None or not problem.answer:
            raise DataError(
                f"row {number} of {path.name} has the columns {', '.join(sorted(row))}, in which there is no question "
                "with an answer: use the columns question and answer, or problem and solution"
            )
        found.setdefault(problem.question, problem)
    return list(found.values())


def _problem(row: Mapping[str, Any]) -> Problem | None:
    match row:
        case {"prompt": [*_, {"content": str(question)}], "reward_model": {"ground_truth": answer}}:
            return Problem(question, str(answer))
        case {"question": str(question), "answer": str(worked)}:
            return Problem(question, final_answer(worked))
        case {"problem": str(question), "answer": str(answer)}:
            return Problem(question, answer.strip())
        case {"problem": str(question), "solution": str(solution)}:
            details = {key: str(row[key]) for key in ("level", "type") if key in row}
            return Problem(question, boxed(solution) or "", details)
    return None


def final_answer(worked: str) -> str:
    """What follows `####` in GSM8K's solutions, without the commas of thousands."""
    _, _, last = worked.rpartition("####")
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", last.strip())


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().split("\n") if line.strip()]
    return read_rows(path)
