"""How all pictures look: one palette that colour-blind readers can tell apart, one font size, thin frames."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    "#8A8F98",
)
"""Okabe and Ito's palette, its black replaced by a grey."""

CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW)

_RULES: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6B7280",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E7EB",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "report",  # the same figures give the same bytes
}


@contextmanager
def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **grid: Any
) -> Iterator[tuple["Figure", list["Axes"]]]:
    """A figure (in inches) and its axes, without pyplot: nothing global is left behind."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_RULES):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, list(figure.subplots(rows, columns, squeeze=False, **grid).flat)


def picture(figure: "Figure", kind: Literal["svg", "png"]) -> bytes:
    """The finished figure as a file's content; call it inside `canvas`."""
    buffer = BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


def rate_axis(axes: "Axes") -> None:
    """Resolve rates are shown from 0 to 1, always."""
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylabel("resolve rate")


def whole_numbers(axis: "Axis") -> None:
    """Ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def step_axis(axes: "Axes", steps: Sequence[int]) -> None:
    """Whole steps only, with room for the first and the last marker."""
    whole_numbers(axes.xaxis)
    first, last = min(steps, default=0), max(steps, default=1)
    margin = max(0.4, (last - first) * 0.02)
    axes.set_xlim(first - margin, last + margin)
    axes.set_xlabel("training step")
