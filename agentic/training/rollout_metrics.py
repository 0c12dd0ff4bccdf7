"""What the rollouts of a step say, as numbers for verl's logger. Pure but for the reader at the end.

The sampler adds them to the metrics of the step that they are trained in, under `rollouts/`; rollouts of a validation
come under `rollouts/validation/` with the first step after it, since verl lets nothing be added to a validation's own
(which has the graded rollouts' means as `val-aux/<split>/...`). They are taken from the run's records, so that rollouts
that infrastructure lost are counted, which verl never sees. Names follow verl's rules for adding up several batches of
one step: what has `sum` in its name is added, `min` and `max` are taken as such, and all else is averaged.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentic import json_lines
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, RolloutRecord, records_path

MIN_GROUP_ROLLOUTS = 2
"""With fewer graded rollouts a group has nothing to compare."""


def rollout_metrics(
    records: Sequence[RolloutRecord], prefix: str = "rollouts", groups: Sequence[int] | None = None
) -> dict[str, float]:
    """Counts of all rollouts, means and extremes of the graded ones; nothing when there are none. `groups`: how many of
    each group of the step were graded; None where rollouts are in no group, as in a validation."""
    if not records:
        return {}
    graded = [record for record in records if record.outcome.is_graded]
    counts = {f"sum/{outcome}": sum(record.outcome is outcome for record in records) for outcome in Outcome}
    found: dict[str, float] = {
        **counts,
        "sum/rollouts": len(records),
        "sum/lost_attempts": sum(len(record.lost) for record in records) + len(records) - len(graded),
    }
    if groups is not None:
        found["sum/groups_below_two"] = sum(graded < MIN_GROUP_ROLLOUTS for graded in groups)
    if graded:
        found["resolve_rate"] = counts[f"sum/{Outcome.SOLVED}"] / len(graded)
        found |= _spread("reward", [record.reward for record in graded if record.reward is not None])
        found |= _spread("tool_reward", [record.tool_reward for record in graded])
        found |= _spread("turns", [record.turns for record in graded])
        found |= _spread("sampled_tokens", [record.sampled_tokens for record in graded])
        found["sampled_tokens/sum"] = sum(record.sampled_tokens for record in graded)
        found |= dict(_seconds(graded))
    return {f"{prefix}/{name}": float(value) for name, value in found.items()}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"{name}/mean": sum(values) / len(values), f"{name}/min": min(values), f"{name}/max": max(values)}


def _seconds(records: Sequence[RolloutRecord]) -> Iterator[tuple[str, float]]:
    """Where the time went; `rollout` is all of it, attempts and waits included."""
    parts = {"rollout": "total", "sandbox": "start", "agent": "agent", "engine": "engine", "verifier": "grade"}
    for name, field in parts.items():
        values = [float(getattr(record.seconds, field)) for record in records]
        yield f"seconds/{name}/mean", sum(values) / len(values)
        yield f"seconds/{name}/max", max(values)


class RecordReader:
    """The records that a run's rollouts write while this is alive, each told once."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._ends = {phase: json_lines.read(records_path(run_dir, phase)).end for phase in Phase}
        self._groups: defaultdict[tuple[int, str], int] = defaultdict(int)

    def take(self, phase: Phase) -> list[RolloutRecord]:
        """What has been written since the last time."""
        found = json_lines.read(records_path(self._run_dir, phase), self._ends[phase])
        self._ends[phase] = found.end
        records = [RolloutRecord.model_validate(row) for row in found.rows]
        if phase is Phase.TRAIN:
            for record in records:
                self._groups[record.step, group_name(record.rollout_id)] += record.outcome.is_graded
        return records

    def end_groups(self, step: int) -> list[int]:
        """How many rollouts were graded in each training group up to this step, of those taken and not yet told. Groups
        of later steps, which may have begun, wait for theirs."""
        ended = [group for group in self._groups if group[0] <= step]
        return [self._groups.pop(group) for group in ended]


def group_name(rollout_id: str) -> str:
    """A rollout's id is its group's, `_`, and its number."""
    return rollout_id.rpartition("_")[0]
