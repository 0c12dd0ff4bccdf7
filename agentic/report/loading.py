"""Reads a run's folder into a `Run`.

A run may have ended anywhere, so each part may be absent: the report then says so in `Run.missing`. A part that exists
must be well-formed: anything else raises `MalformedFile` with the file and the line, since a figure drawn from half of
the data looks as good as one drawn from all. The one exception is a torn line, which is what a killed writer or a full
disk leaves: the last one without its newline, or one that is no JSON. Such lines are left out, counted, and said.
"""

import json
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentic.report.errors import MalformedFile, ReportError
from agentic.report.records import Checkpoint, DoneMarker, Evaluation, Example, Record, RolloutRecord, Run, StepMetrics

PHASES = ("train", "validation", "evaluate")
TORN_LINES_NAMED = 5
"""How many torn lines of a file are named by their number."""
_TRACKER = "latest_checkpointed_iteration.txt"


def load(run_dir: Path) -> Run:
    """Read all that is there.

    Raises:
        ReportError: `run_dir` is no folder.
        MalformedFile: a file is there and is not what its contract says.
    """
    if not run_dir.is_dir():
        raise ReportError(f"{run_dir} is no folder: name the folder of a run, workspace/runs/<run-id>")
    missing: list[str] = []
    rollouts = [
        record
        for phase in PHASES
        for record in _lines(run_dir / "rollouts" / f"{phase}.jsonl", RolloutRecord, f"rollouts of {phase}", missing)
    ]
    return Run(
        run_id=run_dir.resolve().name,
        settings=_settings(run_dir / "settings.json", missing),
        markers=_markers(run_dir / "done", missing),
        metrics=_metrics(run_dir / "metrics.jsonl", missing),
        rollouts=tuple(rollouts),
        examples=tuple(_lines(run_dir / "rollouts" / "examples.jsonl", Example, None, missing)),
        evaluation=_evaluation(run_dir / "evaluation.json", missing),
        checkpoints=_checkpoints(run_dir, missing),
        missing=tuple(missing),
    )


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "the value"
    return f"{place}: {first['msg']}"


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise MalformedFile(path, f"no JSON ({error})") from error


def _check[R: Record](model: type[R], raw: object, path: Path, line: int | None = None) -> R:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise MalformedFile(path, _reason(error), line) from error


def _lines[R: Record](path: Path, model: type[R], what: str | None, missing: list[str]) -> list[R]:
    """Each line as a record; `what` names the part if its absence is worth a word."""
    if not path.exists():
        if what:
            missing.append(f"No {what}: {path.name} is not there.")
        return []
    *whole, rest = path.read_bytes().split(b"\n")
    if rest:
        missing.append(f"The last line of {path.name} is cut, as a killed writer leaves it; it is not counted.")
    records, torn = [], list[str]()
    for number, line in enumerate(whole, 1):
        try:
            raw = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError):
            torn.append(str(number))
            continue
        records.append(_check(model, raw, path, number))
    if torn:
        lines = f"{len(torn)} of {len(whole)} lines of {path.name} (line {', '.join(torn[:TORN_LINES_NAMED])}"
        lines += ", ...)" if len(torn) > TORN_LINES_NAMED else ")"
        missing.append(f"{lines} are torn, as a full disk or a killed writer leaves them; they are not counted.")
    return records


def _metrics(path: Path, missing: list[str]) -> tuple[StepMetrics, ...]:
    """By step; a step that was logged twice (trained again after a resume) counts as it was logged last."""
    lines = _lines(path, StepMetrics, "training metrics", missing)
    by_step = {line.step: line for line in lines}
    return tuple(by_step[step] for step in sorted(by_step))


def _settings(path: Path, missing: list[str]) -> dict[str, Any] | None:
    if not path.exists():
        missing.append("No settings: settings.json is not there.")
        return None
    settings = _json(path)
    if not isinstance(settings, dict):
        raise MalformedFile(path, f"holds a {type(settings).__name__}, not an object")
    return settings


def _evaluation(path: Path, missing: list[str]) -> Evaluation | None:
    if not path.exists():
        missing.append("No evaluation: evaluation.json is not there, so no before and after is known.")
        return None
    return _check(Evaluation, _json(path), path)


def _markers(folder: Path, missing: list[str]) -> tuple[DoneMarker, ...]:
    markers = []
    for path in sorted(folder.glob("*.json")):
        raw = _json(path)
        if not isinstance(raw, dict):
            raise MalformedFile(path, f"holds a {type(raw).__name__}, not an object")
        markers.append(_check(DoneMarker, raw | {"step": path.stem.rpartition("-")[0]}, path))
    if not markers:
        missing.append("No finished step: done/ has no marker.")
    return tuple(sorted(markers, key=lambda marker: marker.started))


def _checkpoints(run_dir: Path, missing: list[str]) -> tuple[Checkpoint, ...]:
    folder = run_dir / "checkpoints"
    found = [
        (int(match[1]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(r"global_step_(\d+)", path.name))
    ]
    if not found:
        missing.append("No checkpoint: checkpoints/ is empty.")
        return ()
    latest = _latest_step(folder / _TRACKER)
    return tuple(
        Checkpoint(
            step=step,
            path=str(path.relative_to(run_dir)),
            size_bytes=sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
            is_whole=step <= latest,
        )
        for step, path in sorted(found)
    )


def _latest_step(tracker: Path) -> int:
    """verl writes its tracker after a checkpoint, so folders beyond it (all, without a tracker) are not whole."""
    if not tracker.exists():
        return -1
    text = tracker.read_text().strip()
    if not text.isdecimal():
        raise MalformedFile(tracker, f"holds {text[:40]!r}, not a step")
    return int(text)
