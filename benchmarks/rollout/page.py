"""The figures for people: a page and a picture."""

from pathlib import Path
from typing import Any

OURS, BARE = "#1a73e8", "#9aa0a6"
TOOL_AGENT_STEPS = "Whole training steps beside verl's ToolAgentLoop"
TOOL_AGENT_SAMPLING = "Sampling beside verl's ToolAgentLoop"


def page(result: dict[str, Any]) -> str:
    """Markdown of what was measured."""
    parts = ["# Rollouts, measured\n\nWritten by `python -m benchmarks.rollout`, never by hand.\n"]
    if "loads" in result:
        parts += [_head(result), _loads(result), _bare(result), _faults(result), _goals(result)]
    if "side_by_side" in result:
        parts.append(_side_by_side(result["side_by_side"]))
    if "whole_steps" in result:
        parts.append(_whole_steps(result["whole_steps"]))
    return "\n".join(parts)


def _head(result: dict[str, Any]) -> str:
    found = result["machine"]
    return (
        f"{result['date']}, `{result['command']}`, {found['processor']}, {found['cores']} cores, load before "
        f"{found['load_before'][0]}.\n\n![lag and processor time](rollout.png)\n"
    )


def _loads(result: dict[str, Any]) -> str:
    names = (
        *("trials", "workers", "trials_per_second", "lag_p99_ms", "lag_max_ms", "cpu_ms_per_trial"),
        *("proxy_cpu_ms_per_trial", "memory_kb_per_trial", "most_sandboxes"),
    )
    return "## Many trials at once\n\n" + _table(names, result["loads"])


def _bare(result: dict[str, Any]) -> str:
    row = result["beside_bare"]
    return (
        f"{_title('Beside bare Harbor', row)}Processor time of one trial in the process that runs trials, median of "
        f"{row['rounds']} pairs of rounds of {row['trials']}; a bare trial has no session, record, diff, or fresh "
        f"sandbox for grading.\n\n{_table(('bare_cpu_ms_per_trial', 'ours_cpu_ms_per_trial', 'ratio'), [row])}"
    )


def _faults(result: dict[str, Any]) -> str:
    row = result["faults"]
    found = row["faults"]
    rows = [
        {"fault": name, "injected": count, "counted": found["counted"].get(name, 0)}
        for name, count in found["injected"].items()
    ]
    return (
        f"{_title('With infrastructure failures', row)}{row['trials']} rollouts, eight kinds, each in one of ten. Mean "
        f"reward {row['mean_reward']}, without faults {found['fault_free_mean_reward']}; sandboxes left: "
        f"{row['sandboxes_left']}.\n\n{_table(('fault', 'injected', 'counted'), rows)}"
    )


def _title(words: str, part: dict[str, Any]) -> str:
    return f"## {words}\n\nMeasured {part['date']}. "


def _goals(result: dict[str, Any]) -> str:
    lines = [f"- {goal}: {'yes' if met else 'NO'}" for goal, met in result["goals"].items()]
    return "## Goals\n\n" + "\n".join(lines) + "\n"


def _side_by_side(found: dict[str, Any]) -> str:
    names = ("loop", "steps", "median_step_seconds", "sampled_tokens", "trained_tokens", "trained_per_sampled")
    return (
        f"{_title(TOOL_AGENT_SAMPLING, found)}Our loop and verl's `ToolAgentLoop` in one process, the same prompt, "
        f"replies, turns, model time and tool time, {found['samples']} samples at once; starting "
        "sandboxes and grading wait for nothing. The goal of 1.05 is for a whole step, of which the rest is "
        f"the same code. Sampling time ratio {found['step_ratio']}.\n\n{_table(names, found['rows'])}"
    )


def _whole_steps(found: dict[str, Any]) -> str:
    names = (
        "tool_seconds",
        "loop",
        "steps",
        "step_seconds",
        "gen_seconds",
        "old_log_prob_seconds",
        "update_actor_seconds",
    )
    names += ("update_weights_seconds", "rollouts", "calls_per_rollout", "commands_per_rollout")
    names += ("sampled_tokens", "trained_tokens", "trained_per_sampled")
    phases = ("tool_seconds", "start_seconds", "agent_seconds", "engine_seconds", "grade_seconds", "total_seconds")
    phases += ("longest_seconds",)
    return (
        f"{_title(TOOL_AGENT_STEPS, found)}Stock verl, vLLM on CPU and the demo's policy, "
        f"{found['rollouts_per_step']} rollouts a step, all at once, a tool call of each turn waiting so long; verl's "
        f"own timings, median. A call is one reply, a command one wait.\n\n{_table(names, found['rows'])}\n"
        f"Where the time of one of our rollouts goes, median; the engine's is a part of the agent's:\n\n"
        f"{_table(phases, found['phases'])}\n{_goals(found)}"
    )


def _table(names: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    head = "| " + " | ".join(name.replace("_", " ") for name in names) + " |\n" + "|---" * len(names) + "|\n"
    return head + "".join("| " + " | ".join(str(row[name]) for name in names) + " |\n" for row in rows)


def draw(result: dict[str, Any], path: Path) -> None:
    """Lag and processor time as bars."""
    if "loads" not in result:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    labels = [f"{row['trials']}\nx{row['workers']}" for row in result["loads"]]
    left.set_title("Event-loop lag, p99 (ms), by trials at once and processes")
    left.bar(labels, [row["lag_p99_ms"] for row in result["loads"]], color=OURS)
    left.axhline(100, color=BARE, linestyle="--")
    row = result["beside_bare"]
    right.set_title("Processor time of one trial (ms)")
    right.bar(["bare Harbor", "ours"], [row["bare_cpu_ms_per_trial"], row["ours_cpu_ms_per_trial"]], color=[BARE, OURS])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
