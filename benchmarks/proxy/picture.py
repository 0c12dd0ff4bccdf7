"""The figures as a picture: what a proxy adds, how much it can answer, and what planning costs by the history."""

from pathlib import Path
from typing import Any

COLOURS = {"direct": "#9aa0a6", "ours": "#1a73e8", "peer": "#d93025"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write a PNG of three panels; a part that was not measured leaves its panel empty."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.2))
    _draw_added(left, result)
    _draw_saturation(middle, result)
    _draw_phases(right, result)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_added(axes: Any, result: dict[str, Any]) -> None:
    axes.set_title("Added latency at 100 calls/s, 1,000 open sessions")
    rows = [row for row in result.get("added", []) if row["added_p50_ms"] is not None]
    for place, row in enumerate(rows):
        colour = COLOURS[row["target"]]
        axes.bar(place - 0.2, max(row["added_p50_ms"], 0.1), 0.4, color=colour, alpha=0.6)
        axes.bar(place + 0.2, max(row["added_p99_ms"], 0.1), 0.4, color=colour)
    labels = [f"{row['target']}\n{row['prompt_tokens_at_turn_20'] // 1000}k\n{_rate(row)}" for row in rows]
    axes.set_xticks(range(len(rows)), labels)
    axes.set_yscale("log")
    axes.set_ylabel("ms (pale p50, full p99)")


def _draw_saturation(axes: Any, result: dict[str, Any]) -> None:
    axes.set_title("Calls answered per second, 16k at turn 20")
    rows = [row for row in result.get("loads", []) if row["offered_calls_per_second"] is None]
    for place, row in enumerate(rows):
        axes.bar(place, row["calls_per_second"], color=COLOURS[row["target"]])
    axes.set_xticks(range(len(rows)), [f"{r['target']}\nx{r['processes']}\n{r['sessions']} open" for r in rows])
    axes.set_ylabel("calls/s")


def _draw_phases(axes: Any, result: dict[str, Any]) -> None:
    axes.set_title("A call's time by phase and history")
    rows = result.get("phases", [])
    if not rows:
        return
    history = [row["history_tokens"] for row in rows]
    for phase in (name for name in rows[0] if name.endswith("_ms")):
        thick = 2.5 if phase == "plan_ms" else 1.2
        axes.plot(history, [row[phase] for row in rows], marker="o", label=phase.removesuffix("_ms"), linewidth=thick)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("tokens of history")
    axes.set_ylabel("ms")
    axes.legend()


def _rate(row: dict[str, Any]) -> str:
    return f"{row['offered_calls_per_second']:g}/s"
