"""The figures as a page of tables, written beside the JSON."""

from collections.abc import Sequence
from typing import Any


def page(result: dict[str, Any]) -> str:
    """Markdown."""
    machine = result["machine"]
    parts = [
        "# The proxy beside rllm-model-gateway and beside no proxy",
        f"`{result['command']}` on {result['date']}; {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, Python {machine['python']}; load before the run "
        f"{', '.join(map(str, machine['load_before']))}. Load generator, engine and target share the machine. "
        f"The engine sleeps 2 s. Peer: {result['peer']}. All values: `proxy.json`.",
        *(_again(part, when) for part, when in result.get("measured_apart", {}).items()),
        "![figures](proxy.png)",
        "## Goals",
        _table(("goal", "at", "bound", "measured", "met"), result["goals"]),
        "## Added to a direct connection",
        "On a timetable; a call counts from when it was due. 1,000 open sessions, 200 in the peer's slow rows.",
        _table(
            (
                "target",
                "prompt_tokens_at_turn_20",
                "offered_calls_per_second",
                "journal",
                "fsync",
                "added_p50_ms",
                "added_p99_ms",
                "cpu_ms_per_call",
                "unanswered",
            ),
            result["added"],
        ),
        "## As fast as they are answered",
        "Failures do not count as answers. With an own port sessions reach their process at a port of its own; else "
        "half of the calls of two processes are passed on. Best rows are compared.",
        _table(
            (
                "target",
                "processes",
                "own_port",
                "sessions",
                "calls_per_second",
                "cpu_ms_per_call",
                "p50_ms",
                "p99_ms",
                "failures",
            ),
            [row for row in result["loads"] if row["offered_calls_per_second"] is None],
        ),
        "## Where a call's time goes",
        "Milliseconds of processor time, by the history of the session; each turn adds 800 tokens.",
        _table(tuple(result["phases"][0]) if result.get("phases") else (), result.get("phases", [])),
        "## Memory",
        _table(
            ("of", "turns", "new_tokens_per_turn", "bytes_per_turn", "bound_bytes_per_turn"),
            [{"of": name, **row} for name, row in result.get("memory_per_turn", {}).items()],
        ),
        "Along sessions that end (the engine does not sleep here):",
        _table(("calls", "mib"), result.get("memory_over_calls", [])),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _again(part: str, when: dict[str, Any]) -> str:
    loads = ", ".join(map(str, when["machine"]["load_before"]))
    return f"Measured again: `python -m benchmarks.proxy --only {part}` on {when['date']}, load before it {loads}."


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    lines = ["| " + " | ".join(name.replace("_", " ") for name in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None or value == {}:
        return ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
