"""What a run's parts add up to: the figures of the report and of `report.json`. Pure.

Curves over steps share one convention, verl's: step 0 is the policy before training, the validation of step n is of the
policy after n updates, and the training rollouts of step n are those of the policy after n - 1 updates.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from agentic.report.records import OUTCOMES, Checkpoint, DoneMarker, RolloutRecord, Run, StepMetrics, Tally
from agentic.report.statistics import Interval, difference, wilson

SCHEMA_VERSION = 1
"""Of report.json; raised when a field changes its meaning or goes."""

SERIES = {
    "reward_mean": "critic/score/mean",
    "reward_max": "critic/score/max",
    "reward_min": "critic/score/min",
    "turns_mean": "num_turns/mean",
    "turns_max": "num_turns/max",
    "turns_min": "num_turns/min",
    "response_tokens_mean": "response_length/mean",
    "response_tokens_max": "response_length/max",
    "probability_difference_mean": "training/rollout_probs_diff_mean",
    "probability_difference_max": "training/rollout_probs_diff_max",
}
"""Our names for the metrics of verl that are drawn as they are."""

STEP_PARTS = (
    "gen",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
    "save_checkpoint",
)
"""verl's timers inside `timing_s/step` that do not overlap; what they leave of a step is shown as "other"."""


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Rate(_Figures):
    """A resolve rate with what it rests on."""

    resolved: int
    graded: int
    infra: int = 0
    rate: float | None
    """`None` when nothing was graded."""
    interval: Interval | None
    """95 %, Wilson."""


class SplitResult(_Figures):
    """The starting policy and the trained one on the same held-out tasks."""

    before: Rate | None
    after: Rate | None
    gain: float | None
    gain_interval: Interval | None
    """95 %, as if the two samples were independent."""


class Point(_Figures):
    """One value of a curve."""

    step: int
    value: float
    graded: int | None = None
    """How many graded rollouts a rate rests on, where that is known."""
    interval: Interval | None = None


class PhaseTime(_Figures):
    """One step of the workflow; its shards, or its runs with other inputs, are one row."""

    step: str
    runs: int
    """How many sets of inputs it has finished with."""
    attempts: int
    """The largest number of attempts that one of them took."""
    started: datetime
    seconds: float
    """While at least one of them ran: overlapping shards count once, the pause between two runs not at all."""


class StepFigures(_Figures):
    """A training step's rewards and turns, `None` where verl logged none."""

    step: int
    reward: tuple[float | None, float | None, float | None]
    """Lowest, mean, highest."""
    turns: tuple[float | None, float | None, float | None]
    """The same; verl's `num_turns`, in which messages of either side count."""


class Summary(_Figures):
    """Everything that the report shows but for settings and example rollouts."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    missing: tuple[str, ...]
    checkpoint: str | None
    checkpoint_step: int | None
    splits: dict[str, SplitResult]
    trained_steps: int
    training_rate: tuple[Point, ...]
    """Resolve rate of the training rollouts."""
    validation: dict[str, tuple[Point, ...]]
    """Resolve rate of each validation split."""
    infra_losses: tuple[Point, ...]
    """Attempts at training rollouts that infrastructure lost, a step; most succeed when tried again."""
    series: dict[str, tuple[Point, ...]]
    """By the names of `SERIES`."""
    steps: tuple[StepFigures, ...] = ()
    """The same by step, as a table."""
    step_seconds: dict[str, tuple[Point, ...]]
    """Parts of each training step, and `testing` beside it."""
    outcomes: dict[str, dict[str, int]]
    """Rollouts by phase and outcome; an evaluation's by policy as well."""
    infra_reasons: dict[str, int]
    """Lost attempts of all phases by reason."""
    rollout_seconds: dict[str, float]
    """Mean seconds of a rollout's parts (start, agent, grade) and in total, over all phases."""
    phases: tuple[PhaseTime, ...]
    seconds: float | None
    """From the first finished step's start to the last one's end."""
    checkpoints: tuple[Checkpoint, ...]


def summarize(run: Run) -> Summary:
    """All figures of a run."""
    evaluation = run.evaluation
    training = [record for record in run.rollouts if record.phase == "train"]
    return Summary(
        run_id=run.run_id,
        missing=run.missing,
        checkpoint=evaluation.checkpoint if evaluation else None,
        checkpoint_step=evaluation.checkpoint_step if evaluation else None,
        splits={
            name: split_result(split.before, split.after)
            for name, split in (evaluation.splits if evaluation else {}).items()
        },
        trained_steps=max((line.step for line in run.metrics), default=0),
        training_rate=_rates_by_step(training),
        validation=_validation(run.metrics, run.rollouts, tuple(evaluation.splits) if evaluation else ()),
        infra_losses=_losses_by_step(training),
        series={name: _series(run.metrics, key) for name, key in SERIES.items()},
        steps=_steps(run.metrics),
        step_seconds=_step_seconds(run.metrics),
        outcomes=_outcomes(run.rollouts),
        infra_reasons=dict(Counter(reason for record in run.rollouts for reason in record.losses)),
        rollout_seconds=_rollout_seconds(run.rollouts),
        phases=_phases(run.markers),
        seconds=_span_seconds(run.markers),
        checkpoints=run.checkpoints,
    )


def split_result(before: Tally | None, after: Tally | None) -> SplitResult:
    """Both sides of a split and what was gained."""
    first, second = _rate(before), _rate(after)
    if first is None or second is None or first.rate is None or second.rate is None:
        return SplitResult(before=first, after=second, gain=None, gain_interval=None)
    return SplitResult(
        before=first,
        after=second,
        gain=second.rate - first.rate,
        gain_interval=difference((first.resolved, first.graded), (second.resolved, second.graded)),
    )


def _rate(tally: Tally | None) -> Rate | None:
    if tally is None:
        return None
    return Rate(
        resolved=tally.resolved,
        graded=tally.graded,
        infra=tally.infra,
        rate=tally.resolved / tally.graded if tally.graded else None,
        interval=wilson(tally.resolved, tally.graded),
    )


def _rates_by_step(records: Iterable[RolloutRecord]) -> tuple[Point, ...]:
    resolved, graded = Counter[int](), Counter[int]()
    for record in records:
        if record.is_graded:
            graded[record.step] += 1
            resolved[record.step] += record.outcome == "solved"
    return tuple(
        Point(
            step=step,
            value=resolved[step] / graded[step],
            graded=graded[step],
            interval=wilson(resolved[step], graded[step]),
        )
        for step in sorted(graded)
    )


def _losses_by_step(records: Iterable[RolloutRecord]) -> tuple[Point, ...]:
    losses = Counter[int]()
    for record in records:
        losses[record.step] += len(record.losses)
    return tuple(Point(step=step, value=float(losses[step])) for step in sorted(losses))


def _series(metrics: Iterable[StepMetrics], key: str) -> tuple[Point, ...]:
    return tuple(Point(step=line.step, value=line.data[key]) for line in metrics if key in line.data)


def _steps(metrics: Iterable[StepMetrics]) -> tuple[StepFigures, ...]:
    """A row for each step that logged rewards or turns."""

    def spread(line: StepMetrics, name: str) -> tuple[float | None, float | None, float | None]:
        low, mean, high = (line.data.get(SERIES[f"{name}_{kind}"]) for kind in ("min", "mean", "max"))
        return low, mean, high

    rows = [StepFigures(step=line.step, reward=spread(line, "reward"), turns=spread(line, "turns")) for line in metrics]
    return tuple(row for row in rows if any(value is not None for value in (*row.reward, *row.turns)))


def _validation(
    metrics: Sequence[StepMetrics], records: Iterable[RolloutRecord], order: Sequence[str]
) -> dict[str, tuple[Point, ...]]:
    """Resolve rate by split, in the evaluation's order, and step.

    Counted from the records: verl takes a rollout that infrastructure lost for a zero. Its metrics only say which
    validations are complete. A task validated again after a resume counts once, as it went last.
    """
    complete = {line.step for line in metrics if any(key.startswith("val-") for key in line.data)}
    latest: dict[str, dict[tuple[int, str], RolloutRecord]] = defaultdict(dict)
    for record in records:
        if record.phase == "validation" and (record.step in complete or not complete):
            latest[record.split][record.step, record.task] = record
    names = (*(name for name in order if name in latest), *sorted(name for name in latest if name not in order))
    return {name: _rates_by_step(latest[name].values()) for name in names}


def _step_seconds(metrics: Sequence[StepMetrics]) -> dict[str, tuple[Point, ...]]:
    parts: dict[str, list[Point]] = defaultdict(list)
    for line in metrics:
        total = line.data.get("timing_s/step")
        if total is None:
            continue
        named = {name: line.data[f"timing_s/{name}"] for name in STEP_PARTS if f"timing_s/{name}" in line.data}
        named["other"] = max(0.0, total - sum(named.values()))
        if (testing := line.data.get("timing_s/testing")) is not None:
            named["testing"] = testing
        for name, value in named.items():
            parts[name].append(Point(step=line.step, value=value))
    return {name: tuple(parts[name]) for name in (*STEP_PARTS, "other", "testing") if name in parts}


def _outcomes(records: Iterable[RolloutRecord]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[record.group][record.outcome] += 1
    return {phase: {outcome: counted[outcome] for outcome in OUTCOMES} for phase, counted in counts.items()}


def _rollout_seconds(records: Iterable[RolloutRecord]) -> dict[str, float]:
    measured = [record.seconds for record in records if record.seconds is not None]
    if not measured:
        return {}
    return {
        part: fmean(getattr(seconds, part) for seconds in measured) for part in ("start", "agent", "grade", "total")
    }


def _phases(markers: Sequence[DoneMarker]) -> tuple[PhaseTime, ...]:
    runs: dict[str, list[DoneMarker]] = defaultdict(list)
    for marker in markers:
        runs[marker.step].append(marker)
    return tuple(
        PhaseTime(
            step=step,
            runs=len(group),
            attempts=max(marker.attempt for marker in group),
            started=min(marker.started for marker in group),
            seconds=_busy_seconds(group),
        )
        for step, group in runs.items()
    )


def _busy_seconds(markers: Sequence[DoneMarker]) -> float:
    """Length of the union of their times."""
    busy, until = timedelta(), None
    for marker in sorted(markers, key=lambda marker: marker.started):
        begin = marker.started if until is None else max(marker.started, until)
        busy += max(timedelta(), marker.ended - begin)
        until = max(begin, marker.ended)
    return busy.total_seconds()


def _span_seconds(markers: Sequence[DoneMarker]) -> float | None:
    if not markers:
        return None
    return (max(marker.ended for marker in markers) - min(marker.started for marker in markers)).total_seconds()


def verdict(result: SplitResult) -> str:
    """What a split shows, in a few words."""
    if result.gain is None or result.gain_interval is None:
        return "not evaluated on both sides"
    low, high = result.gain_interval
    kind = "a gain" if low > 0 else "a loss" if high < 0 else "no clear change"
    return f"{kind}: {result.gain:+.3f} (95 % interval {low:+.3f} to {high:+.3f})"
