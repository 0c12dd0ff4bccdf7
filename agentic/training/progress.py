"""The line that people watch while a policy trains. Pure but for reading the rollout records."""

from pathlib import Path
from typing import NamedTuple

from agentic.rollout.records import Phase, read_records, summarise
from agentic.training import metrics
from agentic.training.jobs import HeldOut
from agentic.training.metrics import StepMetrics


class Progress(NamedTuple):
    """Last finished step and the line about it."""

    step: int
    message: str


def describe(run_dir: Path, logged: list[StepMetrics], held_out: HeldOut, total_steps: int) -> Progress:
    """The line for what is logged so far, which is not nothing."""
    step = logged[-1].step
    parts = [f"step {step}/{total_steps}"]
    parts += _rewards(run_dir, logged[-1])
    curve = read_curve(run_dir, logged, held_out)
    if curve:
        parts.append(f"resolve rate {' -> '.join(f'{rate:.2f}' for rate in _ends([rate for _, rate in curve]))}")
    remaining = metrics.remaining_seconds(logged, total_steps)
    if remaining is not None:
        parts.append(f"ETA {format_seconds(remaining)}")
    return Progress(step, " · ".join(parts))


def read_curve(run_dir: Path, logged: list[StepMetrics], held_out: HeldOut) -> list[tuple[int, float]]:
    """The validation curve of a run's folder."""
    records = read_records(run_dir, Phase.VALIDATION)
    return metrics.validation_curve(records, held_out.split, metrics.validated_steps(logged, held_out.source))


def format_seconds(seconds: float) -> str:
    """75 -> '1m 15s'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def _ends(values: list[float]) -> list[float]:
    return values if len(values) < 2 else [values[0], values[-1]]


def _rewards(run_dir: Path, last: StepMetrics) -> list[str]:
    records = [record for record in read_records(run_dir, Phase.TRAIN) if record.step == last.step]
    if not records:
        return []
    summary = summarise(records)
    return [
        f"reward {_number(summary.mean_reward)} (max {_number(summary.max_reward)})",
        f"turns {_number(summary.mean_turns)}",
        f"infra losses {summary.infra}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
