"""Pictures of one run, each a function from its summary to SVG, or `None` when there is nothing to draw.

Rates are drawn from 0 to 1 with 95 % intervals wherever the number of rollouts behind them is known.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentic.report.records import OUTCOMES
from agentic.report.style import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    YELLOW,
    canvas,
    picture,
    rate_axis,
    step_axis,
    whole_numbers,
)
from agentic.report.summary import Point, Rate, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_INCHES = 8.6

_OUTCOME_COLOURS = dict(zip(OUTCOMES, (GREEN, ORANGE, YELLOW, SKY, RED), strict=True))
_PART_COLOURS = {
    "gen": BLUE,
    "reward": YELLOW,
    "old_log_prob": SKY,
    "ref": "#A6CEE3",
    "values": "#CAB2D6",
    "adv": PURPLE,
    "update_critic": "#B15928",
    "update_actor": ORANGE,
    "update_weights": GREEN,
    "save_checkpoint": "#4B5563",
    "other": "#C3C7CE",
    "testing": RED,
}


def _steps(points: Sequence[Point]) -> list[int]:
    return [point.step for point in points]


def _values(points: Sequence[Point]) -> list[float]:
    return [point.value for point in points]


def _line(axes: "Axes", points: Sequence[Point], label: str, colour: str, marker: str = "") -> None:
    axes.plot(_steps(points), _values(points), label=label, color=colour, marker=marker, markersize=5)


def _bars_of_intervals(axes: "Axes", points: Sequence[Point], colour: str) -> None:
    for point in points:
        if point.interval is not None:
            axes.plot([point.step] * 2, list(point.interval), color=colour, linewidth=1.2, alpha=0.7)


def before_and_after(summary: Summary) -> bytes | None:
    """Each split's resolve rate before and after training."""
    sides = [(split, result) for split, result in summary.splits.items() if result.before or result.after]
    if not sides:
        return None
    with canvas(_WIDTH_INCHES, 1.1 + 0.75 * len(sides)) as (figure, (axes,)):
        for row, (_, result) in enumerate(sides):
            for rate, colour, offset in ((result.before, GREY, 0.16), (result.after, BLUE, -0.16)):
                _rate_bar(axes, rate, row=row - offset, colour=colour)
        axes.set_yticks(range(len(sides)), [split for split, _ in sides])
        axes.set_ylim(len(sides) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.set_xlabel("resolve rate on held-out tasks (greedy), with 95 % interval")
        axes.grid(visible=False, axis="y")
        for label, colour in (("before training", GREY), ("after", BLUE)):
            axes.barh([0], [0], color=colour, label=label)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        return picture(figure, "svg")


def _rate_bar(axes: "Axes", rate: Rate | None, row: float, colour: str) -> None:
    if rate is None or rate.rate is None or rate.interval is None:
        return
    low, high = rate.interval
    axes.barh([row], [rate.rate], height=0.28, color=colour)
    axes.plot([low, high], [row, row], color="#1F2937", linewidth=1.4)
    is_near_the_edge = high > 0.75
    axes.text(
        low - 0.012 if is_near_the_edge else high + 0.012,
        row,
        f"{rate.rate:.3f}  ({rate.resolved}/{rate.graded})",
        va="center",
        ha="right" if is_near_the_edge else "left",
        color="white" if is_near_the_edge else "#1F2937",
        fontsize=9,
    )


def learning_curve(summary: Summary) -> bytes | None:
    """Resolve rate of training rollouts and of each validation split over the steps."""
    curves = {split: curve for split, curve in summary.validation.items() if curve}
    if not curves and not summary.training_rate:
        return None
    with canvas(_WIDTH_INCHES, 4.0) as (figure, (axes,)):
        if summary.training_rate:
            _line(axes, summary.training_rate, "training rollouts (sampled)", "#B6BBC4")
        for (split, curve), colour in zip(curves.items(), CYCLE * len(curves), strict=False):
            _bars_of_intervals(axes, curve, colour)
            counts = {point.graded for point in curve if point.graded}
            known = f", n = {min(counts)}" if counts else ""
            _line(axes, curve, f"{split} (greedy{known})", colour, marker="o")
        if summary.checkpoint_step is not None:
            axes.axvline(
                summary.checkpoint_step, color=GREY, linestyle=":", linewidth=1.2, label="evaluated checkpoint"
            )
        rate_axis(axes)
        step_axis(axes, [point.step for curve in (*curves.values(), summary.training_rate) for point in curve])
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
        return picture(figure, "svg")


def rewards(summary: Summary) -> bytes | None:
    """Mean and max reward of training rollouts, and what infrastructure lost."""
    mean, highest = summary.series["reward_mean"], summary.series["reward_max"]
    if not mean and not summary.infra_losses:
        return None
    with canvas(_WIDTH_INCHES, 2.9, columns=2) as (figure, (left, right)):
        _line(left, mean, "mean", BLUE)
        _line(left, highest, "max", GREY)
        _line(left, summary.series["reward_min"], "min", SKY)
        left.set_title("reward of training rollouts")
        lowest = min(0.0, *_values(summary.series["reward_min"]), 0.0)
        left.set_ylim(lowest * 1.05, max(1.0, *_values(highest)) * 1.05 if highest else 1.05)
        left.legend(loc="best")
        right.bar(_steps(summary.infra_losses), _values(summary.infra_losses), color=RED, width=0.7)
        right.set_title("attempts lost to infrastructure")
        right.set_ylim(0, max(1.0, max(_values(summary.infra_losses), default=0) * 1.1))
        whole_numbers(right.yaxis)
        for axes, points in ((left, mean), (right, summary.infra_losses)):
            step_axis(axes, _steps(points))
        return picture(figure, "svg")


def behaviour(summary: Summary) -> bytes | None:
    """Turns, response length, and how far the trainer's probabilities are from the engine's."""
    panels: list[tuple[str, list[tuple[str, str, str]]]] = [
        (
            "turns of a rollout",
            [("turns_mean", "mean", BLUE), ("turns_max", "max", GREY), ("turns_min", "min", SKY)],
        ),
        ("response, tokens", [("response_tokens_mean", "mean", BLUE), ("response_tokens_max", "max", GREY)]),
        (
            "|engine - trainer| probability",
            [("probability_difference_mean", "mean", BLUE), ("probability_difference_max", "max", GREY)],
        ),
    ]
    panels = [(title, lines) for title, lines in panels if any(summary.series[name] for name, _, _ in lines)]
    if not panels:
        return None
    with canvas(_WIDTH_INCHES, 2.9, columns=len(panels)) as (figure, every):
        for axes, (title, lines) in zip(every, panels, strict=True):
            values = [value for name, _, _ in lines for value in _values(summary.series[name])]
            for name, label, colour in lines:
                if summary.series[name]:
                    _line(axes, summary.series[name], label, colour)
            axes.set_title(title)
            if title.startswith("|") and min(values) > 0:
                axes.set_yscale("log")
            else:
                axes.set_ylim(0, max(values) * 1.1 or 1)
            step_axis(axes, [step for name, _, _ in lines for step in _steps(summary.series[name])])
            axes.legend(loc="best")
        return picture(figure, "svg")


def step_times(summary: Summary) -> bytes | None:
    """What each training step spent its time on, stacked."""
    if not summary.step_seconds:
        return None
    steps = sorted({point.step for points in summary.step_seconds.values() for point in points})
    with canvas(_WIDTH_INCHES, 3.4) as (figure, (axes,)):
        bottom = dict.fromkeys(steps, 0.0)
        for name, points in summary.step_seconds.items():
            label = "testing (validation)" if name == "testing" else name
            axes.bar(
                _steps(points),
                _values(points),
                bottom=[bottom[point.step] for point in points],
                width=0.8,
                color=_PART_COLOURS[name],
                label=label,
            )
            for point in points:
                bottom[point.step] += point.value
        axes.set_ylabel("seconds")
        step_axis(axes, steps)
        axes.set_xlim(min(steps) - 0.6, max(steps) + 0.6)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
        return picture(figure, "svg")


def outcomes(summary: Summary) -> bytes | None:
    """How the rollouts of each phase ended, as shares of all."""
    counts = {phase: counted for phase, counted in summary.outcomes.items() if sum(counted.values())}
    if not counts:
        return None
    with canvas(_WIDTH_INCHES, 1.1 + 0.45 * len(counts)) as (figure, (axes,)):
        for row, counted in enumerate(counts.values()):
            total, left = sum(counted.values()), 0.0
            for outcome in OUTCOMES:
                share = counted[outcome] / total
                axes.barh([row], [share], left=[left], height=0.62, color=_OUTCOME_COLOURS[outcome])
                if share >= 0.05:
                    axes.text(left + share / 2, row, str(counted[outcome]), ha="center", va="center", fontsize=9)
                left += share
        axes.set_yticks(
            range(len(counts)), [f"{phase}  (n = {sum(counted.values())})" for phase, counted in counts.items()]
        )
        axes.set_ylim(len(counts) - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("share of rollouts")
        for outcome in OUTCOMES:
            axes.barh([0], [0], color=_OUTCOME_COLOURS[outcome], label=outcome.replace("_", " "))
        figure.legend(loc="outside upper center", ncols=len(OUTCOMES), columnspacing=1.4, handlelength=1.4)
        return picture(figure, "svg")


PICTURES: dict[str, tuple[Callable[[Summary], bytes | None], str]] = {
    "before_and_after": (before_and_after, "Resolve rate of each held-out split before and after training"),
    "learning_curve": (learning_curve, "Resolve rate over training steps"),
    "rewards": (rewards, "Reward and lost attempts over training steps"),
    "behaviour": (behaviour, "Turns, response length and probability difference over training steps"),
    "step_times": (step_times, "Seconds of each part of every training step"),
    "outcomes": (outcomes, "How the rollouts of each phase ended"),
}
"""Every picture by the name that the page uses, with its alternative text."""
