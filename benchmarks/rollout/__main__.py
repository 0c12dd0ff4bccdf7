"""Measure rollouts and write the table.

    python -m benchmarks.rollout [--quick | --side-by-side | --whole-steps WORKSPACE] [--parts PART ...]
                                 [--output docs/results/rollout.json]

1. 1,000 and 3,000 trials at once, in one process and in two, with sandboxes and a model that only wait: trials a
   second, the event loop's lag, memory and processor time of a trial.
2. Bare Harbor trials of the same task in the same run, and the ratio of processor time.
3. The same with infrastructure failures of eight kinds, each in one rollout of ten.
`--side-by-side` instead samples a few steps with verl's own `ToolAgentLoop` and with ours; `--whole-steps WORKSPACE`
trains whole ones on the policy and data of a demo run. Both are added to the others' results. Figures for the table
come from the full form on a quiet machine; `--quick` takes less than a minute. The exit code is 1 when a goal is
missed.
"""

import argparse
import asyncio
import datetime
import json
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.proxy import machine

from .page import draw, page
from .rounds import Shape, run_round

LAG_MS, CPU_RATIO = 100.0, 1.2
"""The goals."""
PARTS = ("loads", "bare", "faults")


async def load(quick: bool) -> list[dict[str, Any]]:
    """Ours, by trials at once and workers. Waits are long enough for all trials to run at the same time."""
    rows = []
    for trials, reply in ((100, 0.5),) if quick else ((1000, 20.0), (3000, 60.0)):
        for workers in (1, 2):
            rows.append(await _told("ours", Shape(trials, workers, reply=reply)))
    return rows


async def beside_bare(quick: bool) -> dict[str, Any]:
    """Processor time of ours and of bare Harbor in pairs, each first in every other one; the median pair counts, since
    a machine's speed drifts by more between two rounds than the two differ."""
    trials, rounds = (60, 1) if quick else (300, 8)
    pairs = []
    for number in range(rounds):
        shape = Shape(trials, reply=0.2, start=0.2, first=10_000 * (number + 1))
        order = ("bare", "ours") if number % 2 else ("ours", "bare")
        spent = {who: (await _told(who, shape))["cpu_ms_per_trial"] for who in order}
        pairs.append((spent["bare"], spent["ours"]))
    return {
        "date": _now(),
        "trials": trials,
        "rounds": rounds,
        "bare_cpu_ms_per_trial": round(statistics.median(bare for bare, _ in pairs), 2),
        "ours_cpu_ms_per_trial": round(statistics.median(ours for _, ours in pairs), 2),
        "ratio": round(statistics.median(ours / bare for bare, ours in pairs), 3),
    }


async def _told(who: str, shape: Shape) -> dict[str, Any]:
    row = await run_round(who, shape)
    sys.stderr.write(json.dumps(row) + "\n")
    return row


async def run(quick: bool, parts: Sequence[str]) -> dict[str, Any]:
    """The whole benchmark, or parts of it."""
    result: dict[str, Any] = {
        "command": "python -m benchmarks.rollout" + " --quick" * quick,
    }
    if "loads" in parts:
        result |= {"date": _now(), "machine": machine.description()}
        result["loads"] = await load(quick)
    if "bare" in parts:
        result["beside_bare"] = await beside_bare(quick)
    if "faults" in parts:
        shape = Shape(50 if quick else 1000, reply=0.2 if quick else 5.0, faulty=True)
        result["faults"] = {"date": _now(), **await _told("ours", shape)}
    return result


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def goals(result: dict[str, Any]) -> dict[str, bool]:
    """Which goals these figures meet."""
    faults = result["faults"]
    return {
        "all trials at once": all(row["most_sandboxes"] >= row["trials"] for row in result["loads"]),
        f"loop lag p99 at most {LAG_MS:g} ms": all(row["lag_p99_ms"] <= LAG_MS for row in result["loads"]),
        f"processor time at most {CPU_RATIO:g} of bare Harbor's": result["beside_bare"]["ratio"] <= CPU_RATIO,
        "every fault counted under its name": faults["faults"]["injected"] == faults["faults"]["counted"],
        "rewards as without faults": faults["faults"]["rewards_as_without_faults"],
        "no sandbox left": not any(row["sandboxes_left"] for row in (*result["loads"], faults)),
    }


def main() -> int:
    """Run and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollout", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quick", action="store_true", help="less than a minute; not for the table")
    form.add_argument("--side-by-side", action="store_true", help="a step's sampling beside verl's ToolAgentLoop")
    form.add_argument(
        "--whole-steps",
        type=Path,
        metavar="WORKSPACE",
        help="whole training steps beside verl's, after a demo run there",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="of the three above, these only")
    parser.add_argument("--steps", type=int, default=6, help="of each loop, for --whole-steps")
    parser.add_argument("--output", type=Path, help="where the JSON goes; table and picture land beside it")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Ends Ray and trials on the way.
    known = json.loads(options.output.read_text()) if options.output and options.output.is_file() else {}
    result = known | asyncio.run(measure(options))
    if all(part in result for part in ("loads", "beside_bare", "faults")):
        result["goals"] = goals(result)
    text = json.dumps(result, indent=1) + "\n"
    if options.output is None:
        sys.stdout.write(text)
        return int(not is_met(result))
    options.output.write_text(text)
    options.output.with_suffix(".md").write_text(page(result))
    draw(result, options.output.with_suffix(".png"))
    return int(not is_met(result))


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What the chosen form adds to the results."""
    if options.side_by_side:
        from .side_by_side import compare

        return {"side_by_side": {"date": _now(), **await compare()}}
    if options.whole_steps:
        from .whole_steps import compare as compare_steps

        return {"whole_steps": {"date": _now(), **await compare_steps(options.whole_steps.resolve(), options.steps)}}
    return await run(options.quick, options.parts)


def is_met(result: dict[str, Any]) -> bool:
    """Every goal that was measured."""
    parts = (result, *(result.get(part, {}) for part in ("side_by_side", "whole_steps")))
    return all(met for part in parts for met in part.get("goals", {}).values())


if __name__ == "__main__":
    raise SystemExit(main())
