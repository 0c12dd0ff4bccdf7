"""What verl logged, over all attempts of a run, and what follows from it. Pure but for the two functions at the end.

verl's file logger truncates its file when a trainer starts, so each attempt writes its own,
`runs/<run-id>/metrics/attempt-<n>.jsonl`. Merged by step they are `metrics.jsonl`: a step that was trained again after
a resume counts once, as its last attempt had it. A line cut by a kill is the last of its file and is left out.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from agentic import files
from agentic.rollout.records import RolloutRecord, summarise

REWARD_MEAN = "critic/score/mean"
REWARD_MAX = "critic/score/max"
STEP_SECONDS = "timing_s/step"
LEAST_GRADED = 0.5
"""Of a validation's tasks, for its rate to be one."""


class StepMetrics(BaseModel):
    """One line of verl's file logger: step 0 is the validation before training."""

    model_config = ConfigDict(frozen=True)

    step: int
    data: dict[str, float | int | None]


def parse(text: str) -> list[StepMetrics]:
    """Lines of one attempt; only the last may be cut.

    Raises:
        ValueError: a line before the last is no JSON of the expected form.
    """
    lines = text.split("\n")
    parsed = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            raw: dict[str, Any] = json.loads(line)
            numbers = {key: value for key, value in raw["data"].items() if isinstance(value, int | float)}
            parsed.append(StepMetrics(step=raw["step"], data=numbers))
        except (json.JSONDecodeError, ValidationError, KeyError) as error:
            if number == len(lines):
                break
            raise ValueError(f"line {number} of the metrics is malformed: {line[:80]!r}") from error
    return parsed


def merge(attempts: Iterable[Sequence[StepMetrics]]) -> list[StepMetrics]:
    """All attempts by step, ascending; the later attempt wins."""
    by_step = {line.step: line for attempt in attempts for line in attempt}
    return [by_step[step] for step in sorted(by_step)]


def validated_steps(metrics: Iterable[StepMetrics], source: str) -> list[int]:
    """Steps whose validation of a data source is complete: verl logs it as a whole."""
    prefixes = (f"val-core/{source}/", f"val-aux/{source}/")
    return [line.step for line in metrics if any(key.startswith(prefixes) for key in line.data)]


def validation_curve(records: Iterable[RolloutRecord], split: str, steps: Sequence[int]) -> list[tuple[int, float]]:
    """(step, resolve rate over graded rollouts) of each complete validation of a split.

    Computed from the rollout records and not from verl's metrics, which count a rollout that was lost to
    infrastructure as a zero. A task validated again after a resume counts once, as it went last. A validation that
    mostly was lost says nothing of its policy, whatever the few say that were graded, and is left out.
    """
    latest: dict[int, dict[str, RolloutRecord]] = {step: {} for step in steps}
    for record in records:
        if record.split == split and record.step in latest:
            latest[record.step][record.task] = record
    summaries = [(step, summarise(latest[step].values())) for step in steps]
    return [
        (step, summary.resolve_rate)
        for step, summary in summaries
        if summary.resolve_rate is not None and summary.graded >= LEAST_GRADED * summary.rollouts
    ]


def best_step(curve: Sequence[tuple[int, float]], saved: Iterable[int]) -> tuple[int, float] | None:
    """The saved step with the highest rate; the later of equals, since it trained longer on the same evidence."""
    steps = set(saved)
    candidates = [(rate, step) for step, rate in curve if step in steps]
    if not candidates:
        return None
    rate, step = max(candidates)
    return step, rate


def has_stalled(curve: Sequence[tuple[int, float]], patience: int | None) -> bool:
    """Whether the last `patience` validations all failed to beat the best one before them."""
    if patience is None or len(curve) <= patience:
        return False
    rates = [rate for _, rate in curve]
    return max(rates[-patience:]) <= max(rates[:-patience])


def remaining_seconds(metrics: Sequence[StepMetrics], total_steps: int) -> float | None:
    """Expected time of the steps that are left, from the median so far; validations and checkpoints not counted."""
    durations = [value for line in metrics if (value := line.data.get(STEP_SECONDS)) is not None]
    if not durations:
        return None
    return median(durations) * max(0, total_steps - metrics[-1].step)


def attempt_file(run_dir: Path) -> Path:
    """A fresh file for the attempt that is about to start."""
    folder = run_dir / "metrics"
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [
        int(found[1]) for path in folder.iterdir() if (found := re.fullmatch(r"attempt-(\d+)\.jsonl", path.name))
    ]
    return folder / f"attempt-{max(numbers, default=0) + 1}.jsonl"


def collect(run_dir: Path) -> list[StepMetrics]:
    """Merge the attempts of a run into `metrics.jsonl` and return them."""
    folder = run_dir / "metrics"
    attempts = sorted(folder.glob("attempt-*.jsonl"), key=lambda path: int(path.stem.split("-")[1]))
    merged = merge([parse(path.read_text()) for path in attempts])
    path, text = run_dir / "metrics.jsonl", "".join(line.model_dump_json() + "\n" for line in merged)
    if not path.exists() or path.read_text() != text:
        files.write_text(path, text)
    return merged
