"""The figures of a benchmark as one picture."""

from pathlib import Path
from typing import Any


def draw(parts: dict[str, Any], out: Path) -> None:
    """Latency and rate of commands against how many run at once, and transfers; nothing until these are measured."""
    if "exec" not in parts or "transfer" not in parts:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (latency, rate, transfer) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    commands, files = parts["exec"]["commands"], parts["transfer"]["files"]
    for way in dict.fromkeys(row["way"] for row in commands):
        rows = [row for row in commands if row["way"] == way]
        at = [row["concurrency"] for row in rows]
        line = latency.plot(at, [row["p50_ms"] for row in rows], marker="o", label=way)[0]
        latency.plot(at, [row["p99_ms"] for row in rows], marker=".", linestyle=":", color=line.get_color())
        rate.plot(at, [row["per_second"] for row in rows], marker="o", label=way)
    for axes, title in ((latency, "a command, ms (line p50, dots p99)"), (rate, "commands per second")):
        axes.set(xscale="log", yscale="log", title=title, xlabel="at the same time")
        axes.grid(alpha=0.3)
    rate.legend(frameon=False)
    names = [row["way"] if row["is_exact"] else f"{row['way']} (not exact)" for row in files]
    for offset, name in ((-0.2, "upload"), (0.2, "download")):
        heights = [row[f"{name}_mb_per_second"] for row in files]
        transfer.bar([place + offset for place in range(len(names))], heights, width=0.4, label=name)
    transfer.set(title=f"a file of {files[0]['megabytes']} MB, MB/s")
    transfer.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
    transfer.legend(frameon=False)
    figure.savefig(out, dpi=110)
    pyplot.close(figure)
