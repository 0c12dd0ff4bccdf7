"""`python -m benchmarks.swebench_parity`: every patch of every instance, both verdicts, as a table in JSON.

Ours comes from the real verifier, which undoes changes to tests and their configuration; where a forged patch is
believed by the package and not by us, ours is stricter, and is counted apart. The exit code is 1 when they differ in
any other way, or when an instance's gold patch is not resolved.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agentic.authoring.trying import task_trials
from agentic.files import write_json
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.settings import BubblewrapSandbox
from benchmarks.swebench_parity.instances import INSTANCES, Instance
from benchmarks.swebench_parity.runs import make_tasks, our_verdict, their_verdict

TEST_SECONDS = 45.0
GRADING_SECONDS = 120.0


async def compare(instances: tuple[Instance, ...], folder: Path, concurrency: int) -> list[dict[str, Any]]:
    """One row for each patch."""
    settings = BubblewrapSandbox()
    tasks = make_tasks(instances, folder, TEST_SECONDS)
    store = open_store(folder / "images", settings)
    provider = make_provider(settings, store)
    gate = asyncio.Semaphore(concurrency)
    async with task_trials(list(tasks.values()), folder / "images", settings, concurrency) as (trials, broken):
        if broken:
            raise RuntimeError(f"images cannot be built: {broken}")

        async def judge(instance: Instance, kind: str, patch: str) -> dict[str, Any]:
            task = tasks[instance.instance_id]
            async with gate:
                theirs = await their_verdict(provider, store, task, instance.row(), patch, TEST_SECONDS)
                ours = await our_verdict(trials, task, patch, TEST_SECONDS + GRADING_SECONDS)
            sys.stderr.write(f"{instance.instance_id} {kind}: swebench {theirs}, ours {ours}\n")
            row = {"instance": instance.instance_id, "log_parser": instance.parser, "command": instance.command}
            verdicts = {"swebench": theirs, "ours": ours, "agree": theirs == ours}
            return {**row, "patch": kind, **verdicts, "ours_stricter": is_stricter(kind, theirs, ours)}

        try:
            work = [judge(one, kind, patch) for one in instances for kind, patch in one.patches().items()]
            return list(await asyncio.gather(*work))
        finally:
            await provider.close()


def is_stricter(kind: str, theirs: bool, ours: bool) -> bool:
    """Whether a difference is one that undoing a forgery makes."""
    return kind == "forged" and theirs and not ours


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swebench_parity", description=__doc__)
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="instances by name (default: all)")
    parser.add_argument("--parallel", type=int, default=3)
    arguments = parser.parse_args()
    chosen = tuple(one for one in INSTANCES if not arguments.only or one.name in arguments.only)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agentic-parity-") as folder:
        rows = asyncio.run(compare(chosen, Path(folder), arguments.parallel))
    result = {
        "swebench": version("swebench"),
        "instances": len(chosen),
        "patches": len(rows),
        "agree": sum(row["agree"] for row in rows),
        "ours_stricter": sum(row["ours_stricter"] for row in rows),
        "gold_resolved": sum(row["swebench"] for row in rows if row["patch"] == "gold"),
        "gold_resolved_by_ours": sum(row["ours"] for row in rows if row["patch"] == "gold"),
        "others_resolved": sum(row["swebench"] for row in rows if row["patch"] != "gold"),
        "others_resolved_by_ours": sum(row["ours"] for row in rows if row["patch"] != "gold"),
        "seconds": round(time.monotonic() - started, 1),
        "rows": rows,
    }
    if arguments.output:
        write_json(arguments.output, result)
    sys.stdout.write(
        f"{result['agree']} of {len(rows)} verdicts agree on {len(chosen)} instances; ours is stricter on "
        f"{result['ours_stricter']} forged patches\n"
    )
    is_alike = result["agree"] + result["ours_stricter"] == len(rows)
    golds = {result["gold_resolved"], result["gold_resolved_by_ours"]}
    return int(not is_alike or golds != {len(chosen)})


if __name__ == "__main__":
    raise SystemExit(main())
