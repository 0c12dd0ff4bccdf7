"""From the rows to what was asked for: what each target adds to direct, and which goals are met."""

from collections.abc import Sequence
from typing import Any

GOALS = {
    "added p50 at 100 calls/s, 16k": 5.0,
    "added p99 at 100 calls/s, 16k": 25.0,
    "added p50 at 100 calls/s, 64k": 5.0,
    "added p99 at 100 calls/s, 64k": 25.0,
}
"""Milliseconds, at most."""
CALLS_PER_SECOND, TIMES_THE_PEER, PLAN_RATIO = 200.0, 5.0, 2.0
APART = {"phases": "phases", "kept": "memory_per_turn", "flat": "memory_over_calls"}
"""Parts that are compared with no other, with the name of their figures: they may be measured again alone."""


def measured_again(result: dict[str, Any], parts: Sequence[str], earlier: dict[str, Any]) -> dict[str, Any]:
    """An earlier result with these parts of a later one, which are dated."""
    when = {name: result[name] for name in ("date", "machine")}
    figures = {APART[part]: result[APART[part]] for part in parts}
    apart = earlier.get("measured_apart", {}) | dict.fromkeys(parts, when)
    merged = earlier | figures | {"measured_apart": apart}
    return merged | {"goals": goals(merged)}


def added(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each load on a timetable adds to the direct one of the same prompts."""
    direct = {row["prompt_tokens_at_turn_20"]: row for row in rows if row["target"] == "direct"}
    found = []
    for row in rows:
        base = direct.get(row["prompt_tokens_at_turn_20"])
        if row["target"] == "direct" or row["offered_calls_per_second"] is None or base is None:
            continue
        kept = ("target", "prompt_tokens_at_turn_20", "offered_calls_per_second", "journal", "fsync", "cpu_ms_per_call")
        found.append(
            {name: row[name] for name in kept if name in row}
            | {f"added_{name}": round(row[name] - base[name], 1) for name in ("p50_ms", "p99_ms")}
            | {"unanswered": row["unanswered"]}
        )
    return found


def saturation(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The most calls a second that each target answered."""
    full = [row for row in rows if row["offered_calls_per_second"] is None]
    return {
        name: max(row["calls_per_second"] for row in full if row["target"] == name)
        for name in sorted({row["target"] for row in full})
    }


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Each goal with what was measured; a part that was not measured has no row."""
    found: list[dict[str, Any]] = []

    def check(goal: str, value: float, bound: float, most: bool = True) -> None:
        met = value <= bound if most else value >= bound
        found.append({"goal": goal, "bound": bound, "at": "most" if most else "least", "measured": value, "met": met})

    for row in result["added"]:
        if row["target"] == "ours" and row.get("journal") and not row.get("fsync"):
            length = f"{row['prompt_tokens_at_turn_20'] // 1000}k"
            for name in ("p50", "p99"):
                goal = f"added {name} at 100 calls/s, {length}"
                check(f"{goal} (ms)", row[f"added_{name}_ms"], GOALS[goal])
    most = result["saturation"]
    if "ours" in most:
        check("calls/s over up to 4 processes", most["ours"], CALLS_PER_SECOND, most=False)
        if "peer" in most:
            check("times the peer's calls/s", round(most["ours"] / most["peer"], 1), TIMES_THE_PEER, most=False)
    for name, row in result.get("memory_per_turn", {}).items():
        if name.startswith("ours"):
            check(f"memory per turn, {name} (bytes)", row["bytes_per_turn"], row["bound_bytes_per_turn"])
    phases = result.get("phases", [])
    if phases:
        check(
            "planning at 128k of history, times that at 1k",
            round(phases[-1]["plan_ms"] / phases[0]["plan_ms"], 2),
            PLAN_RATIO,
        )
    sealed = sum(row["sealed"] for row in result["loads"])
    check(
        "sealed sessions that are one exact trajectory", sum(r["sealed_exact"] for r in result["loads"]), sealed, False
    )
    return found
