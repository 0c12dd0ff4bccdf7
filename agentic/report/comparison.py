"""Several finished runs side by side: seeds of one experiment, and a control that must not learn.

`python -m agentic.report.comparison RUN_DIR... --control RUN_DIR --out docs/results/demo` writes `demo.json`, the
figures of every run, `demo.md`, the tables of them, and `demo.png`, the picture. Every figure comes from the runs' own
files; a run without an evaluation is refused, since a comparison with holes misleads.
"""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from agentic.errors import PermanentError
from agentic.report.errors import ReportError
from agentic.report.loading import load
from agentic.report.style import CYCLE, GREY, canvas, picture, rate_axis, step_axis
from agentic.report.summary import Point, SplitResult, StepFigures, Summary, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PERMANENT = 78


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Machine(_Part):
    """What the runs ran on."""

    cpu: str
    cores: int
    memory_gib: float
    python: str
    system: str


class RunFigures(_Part):
    """One run."""

    run_id: str
    seed: int | None
    is_control: bool
    trained_steps: int
    checkpoint_step: int | None
    seconds: float | None
    splits: dict[str, SplitResult]
    validation: dict[str, tuple[Point, ...]]
    training_rate: tuple[Point, ...]
    steps: tuple[StepFigures, ...]
    """Rewards and turns of each training step, with their extremes."""
    phases: dict[str, float]
    """Seconds of each step of the workflow."""


class Comparison(_Part):
    """What `demo.json` holds."""

    schema_version: int = 1
    command: str
    """What each run was started with, but for its seed."""
    written_by: str
    machine: Machine
    runs: tuple[RunFigures, ...]


def compare(runs: Sequence[Path], controls: Sequence[Path], command: str) -> Comparison:
    """Read the runs.

    Raises:
        ReportError: a run is missing, malformed, or was never evaluated on both sides.
    """
    figures = [_figures(path, is_control=False) for path in runs] + [
        _figures(path, is_control=True) for path in controls
    ]
    return Comparison(
        command=command, written_by="python -m agentic.report.comparison", machine=this_machine(), runs=tuple(figures)
    )


def _figures(run_dir: Path, *, is_control: bool) -> RunFigures:
    run = load(run_dir)
    summary = summarize(run)
    _require_evaluation(run_dir, summary)
    return RunFigures(
        run_id=run.run_id,
        seed=_seed(run.settings),
        is_control=is_control,
        trained_steps=summary.trained_steps,
        checkpoint_step=summary.checkpoint_step,
        seconds=summary.seconds,
        splits=summary.splits,
        validation=summary.validation,
        training_rate=summary.training_rate,
        steps=summary.steps,
        phases={phase.step: round(phase.seconds, 1) for phase in summary.phases},
    )


def _require_evaluation(run_dir: Path, summary: Summary) -> None:
    if not summary.splits:
        raise ReportError(f"{run_dir} has no evaluation: finish the run before it is compared")
    for split, result in summary.splits.items():
        if result.gain is None:
            raise ReportError(
                f"{run_dir}: split {split} lacks a graded before or after: evaluate it before it is compared"
            )


def _seed(settings: dict[str, Any] | None) -> int | None:
    train = (settings or {}).get("train")
    seed = train.get("seed") if isinstance(train, dict) else None
    return seed if isinstance(seed, int) else None


def this_machine() -> Machine:
    """The machine that this runs on; compare where the runs ran."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in _text("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / 2**30, 1),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


def tables(comparison: Comparison, picture_name: str) -> str:
    """Rates and gains, then seconds of each step of the workflow, as Markdown."""
    machine = comparison.machine
    lines = [
        "# Measured runs",
        "",
        f"Written by `{comparison.written_by}`; do not edit. Started with `{comparison.command}`,",
        f"on {machine.cores} cores ({machine.cpu}) and {machine.memory_gib:g} GiB of memory, Python {machine.python}, "
        f"{machine.system}.",
        "",
        f"![Resolve rates over training and gains of all runs]({picture_name})",
        "",
        "| run | split | before | after | gain | 95 % interval |",
        "|---|---|---|---|---|---|",
        *(_gain_row(run, split, result) for run in comparison.runs for split, result in run.splits.items()),
        "",
        *_phase_table(comparison.runs),
    ]
    return "\n".join(lines) + "\n"


def _gain_row(run: RunFigures, split: str, result: SplitResult) -> str:
    sides = (
        "none graded" if side is None or side.rate is None else f"{side.rate:.3f} ({side.resolved}/{side.graded})"
        for side in (result.before, result.after)
    )
    gain = "unknown" if result.gain is None else f"{result.gain:+.3f}"
    interval = "unknown" if result.gain_interval is None else "{:+.3f} to {:+.3f}".format(*result.gain_interval)
    return f"| {_label(run)} | {split} | {' | '.join(sides)} | {gain} | {interval} |"


def _phase_table(runs: Sequence[RunFigures]) -> list[str]:
    steps = dict.fromkeys(step for run in runs for step in run.phases)
    head = ["| seconds |", *(f" {_label(run)} |" for run in runs)]
    rows = [
        f"| {step} |" + "".join(f" {run.phases[step]:.1f} |" if step in run.phases else " |" for run in runs)
        for step in steps
    ]
    totals = "".join(f" {run.seconds:.1f} |" if run.seconds is not None else " |" for run in runs)
    return ["".join(head), "|---|" + "---|" * len(runs), *rows, f"| start to end |{totals}"]


def draw(comparison: Comparison) -> bytes:
    """One panel for each split (curves of all runs) and one with before and after of every run."""
    splits = list(dict.fromkeys(split for run in comparison.runs for split in run.splits))
    with canvas(4.4 * (len(splits) + 1), 4.2, columns=len(splits) + 1) as (figure, (*panels, last)):
        for axes, split in zip(panels, splits, strict=True):
            _draw_curves(axes, comparison.runs, split)
        _draw_gains(last, comparison.runs, splits)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return picture(figure, "png")


def _label(run: RunFigures) -> str:
    name = run.run_id if run.seed is None else f"seed {run.seed}"
    return f"control, {name} (shuffled rewards)" if run.is_control else name


def _colours(runs: Sequence[RunFigures]) -> list[str]:
    trained = iter(CYCLE * len(runs))
    return [GREY if run.is_control else next(trained) for run in runs]


def _draw_curves(axes: "Axes", runs: Sequence[RunFigures], split: str) -> None:
    """Validation of the split over steps, with intervals; the evaluated rate too if validation never covered it."""
    counts = {result.after.graded for run in runs if (result := run.splits.get(split)) and result.after}
    spread = 0.012 * max((run.trained_steps for run in runs), default=1)
    for place, (run, colour) in enumerate(zip(runs, _colours(runs), strict=True)):
        # A little apart, so that the runs' intervals do not hide each other.
        aside = (place - (len(runs) - 1) / 2) * spread
        curve = run.validation.get(split) or _evaluated(run, split)
        steps = [point.step + aside for point in curve]
        style = "--" if run.is_control else "-"
        axes.plot(
            steps, [point.value for point in curve], style, color=colour, marker="o", markersize=4, label=_label(run)
        )
        for step, point in zip(steps, curve, strict=True):
            if point.interval is not None:
                axes.plot([step] * 2, list(point.interval), color=colour, linewidth=1.2, alpha=0.5)
    axes.set_title(f"{split}, n = {'/'.join(str(count) for count in sorted(counts))}")
    rate_axis(axes)
    step_axis(axes, [0, *(run.trained_steps for run in runs)])


def _evaluated(run: RunFigures, split: str) -> tuple[Point, ...]:
    result = run.splits.get(split)
    if result is None or result.before is None or result.after is None:
        return ()
    ends = ((0, result.before), (run.checkpoint_step or run.trained_steps, result.after))
    return tuple(
        Point(step=step, value=side.rate, graded=side.graded, interval=side.interval)
        for step, side in ends
        if side.rate is not None
    )


def _draw_gains(axes: "Axes", runs: Sequence[RunFigures], splits: Sequence[str]) -> None:
    """The gain of each run and split with its interval, one block of rows for each split."""
    row, ticks = 0.0, []
    for split in splits:
        for run, colour in zip(runs, _colours(runs), strict=True):
            result = run.splits.get(split)
            if result is None or result.gain is None or result.gain_interval is None:
                continue
            axes.plot(list(result.gain_interval), [row, row], color=colour, linewidth=2)
            axes.plot([result.gain], [row], "o", color=colour, markersize=6)
            text = f"{result.gain:+.2f}"
            axes.text(result.gain_interval.high + 0.02, row, text, ha="left", va="center", fontsize=9)
            ticks.append((row, f"{'control' if run.is_control else _label(run)} | {split.rpartition('/')[2]}"))
            row += 1
        row += 0.6
    axes.axvline(0, color="#1F2937", linewidth=1)
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks], fontsize=9)
    axes.set_ylim(row - 0.9, -0.7)
    low, high = axes.get_xlim()
    axes.set_xlim(min(-0.25, low), max(0.75, high + 0.08))
    axes.grid(visible=False, axis="y")
    axes.set_title("gain of the evaluated checkpoint")
    axes.set_xlabel("after - before, with 95 % interval")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m agentic.report.comparison", description="Compare finished runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="folder of a finished run")
    parser.add_argument(
        "--control", action="append", default=[], type=Path, help="a run that must not learn; may repeat"
    )
    parser.add_argument("--out", required=True, type=Path, help="path of the results without suffix")
    parser.add_argument(
        "--command", default="python workflows/submit.py local --profile demo", help="what the runs were started with"
    )
    return parser.parse_args()


def main() -> None:
    """Write OUT.json, OUT.md and OUT.png."""
    arguments = _arguments()
    try:
        comparison = compare(arguments.runs, arguments.control, arguments.command)
    except PermanentError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(_PERMANENT) from error
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(comparison.model_dump_json(indent=1) + "\n", encoding="utf-8")
    image = arguments.out.with_suffix(".png")
    arguments.out.with_suffix(".md").write_text(tables(comparison, image.name), encoding="utf-8")
    image.write_bytes(draw(comparison))


if __name__ == "__main__":
    main()
