"""The line that people watch while a policy trains.

`Watch` follows a run's folder: it reads only what was appended since its last look, so that looking every second costs
the same on the first step and on the last.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from agentic import json_lines
from agentic.rollout.records import Phase, read_records, records_path, summarise
from agentic.training import metrics
from agentic.training.jobs import HeldOut
from agentic.training.metrics import StepMetrics


class Progress(NamedTuple):
    """Last finished step and the line about it."""

    step: int
    message: str


class Watch:
    """One training job, from the first validation on."""

    def __init__(self, run_dir: Path, held_out: list[HeldOut], *, total_steps: int, rollouts_per_step: int) -> None:
        self._run_dir = run_dir
        self._decisive = held_out[0]
        self._validated_tasks = sum(len(split.tasks) for split in held_out)
        self._total_steps = total_steps
        self._rollouts_per_step = rollouts_per_step
        self._offsets: Counter[Phase] = Counter()
        self._done: Counter[tuple[Phase, int]] = Counter()
        self._settled = Progress(-1, "")

    def look(self, logged: list[StepMetrics]) -> Progress:
        """The line for what is logged and recorded by now."""
        for phase in (Phase.TRAIN, Phase.VALIDATION):
            self._read_on(phase)
        if not logged:
            return Progress(0, self._under_way(0) or "starting verl, vLLM and the agent loop")
        step = logged[-1].step
        if step != self._settled.step:
            self._settled = describe(self._run_dir, logged, self._decisive, self._total_steps)
        under_way = self._under_way(step + 1)
        return Progress(step, " · ".join(filter(None, [self._settled.message, under_way])))

    def _read_on(self, phase: Phase) -> None:
        found = json_lines.read(records_path(self._run_dir, phase), self._offsets[phase])
        self._offsets[phase] = found.end
        self._done.update((phase, row["step"]) for row in found.rows)

    def _under_way(self, step: int) -> str:
        """How far a step is that is not logged yet: its validation, else its rollouts."""
        if count := self._done[Phase.VALIDATION, step]:
            return f"validating {min(count, self._validated_tasks)}/{self._validated_tasks}"
        count = self._done[Phase.TRAIN, step]
        return f"{min(count, self._rollouts_per_step)}/{self._rollouts_per_step} rollouts" if count else ""


def describe(run_dir: Path, logged: list[StepMetrics], held_out: HeldOut, total_steps: int) -> Progress:
    """The line for what is logged so far, which is not nothing."""
    step = logged[-1].step
    parts = [f"step {step}/{total_steps}"]
    parts += _rewards(run_dir, step)
    curve = read_curve(run_dir, logged, held_out)
    if curve:
        parts.append(f"resolve rate {' -> '.join(f'{rate:.2f}' for rate in _ends([rate for _, rate in curve]))}")
    remaining = metrics.remaining_seconds(logged, total_steps)
    if remaining:
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


def _rewards(run_dir: Path, step: int) -> list[str]:
    records = [record for record in read_records(run_dir, Phase.TRAIN) if record.step == step]
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
