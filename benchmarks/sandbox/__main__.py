"""`make bench-sandbox`: measures on the cluster for tests; writes docs/results/sandbox.json, its page and its picture.

    python -m testbed run python -m benchmarks.sandbox [--parts warm exec] [--missing] [--quick] [--out PATH]

Run it while nothing else runs: latencies under load are the load's. Each part is written as soon as it is measured and
carries its own time and load, so a run that was interrupted goes on with `--missing`, and one part can be measured
again by its name.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from agentic.rollout.pacing import rare_full_collections
from benchmarks.proxy.machine import description
from benchmarks.sandbox.client import measure_client
from benchmarks.sandbox.page import page
from benchmarks.sandbox.picture import draw
from benchmarks.sandbox.rounds import FULL, QUICK, Bench, measure_exec, measure_many, measure_transfers
from benchmarks.sandbox.summary import goals
from benchmarks.sandbox.warm import measure_warm
from testbed.access import ClusterAccess
from testbed.layout import Layout
from testbed.tools import KUBERNETES

PARTS = {
    "client": measure_client,
    "many": measure_many,
    "warm": measure_warm,
    "transfer": measure_transfers,
    "exec": measure_exec,
}
"""In this order; each leaves nothing for the next."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="these only, in this order")
    parser.add_argument("--missing", action="store_true", help="only what the file lacks")
    parser.add_argument("--quick", action="store_true", help="a small plan, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/sandbox"), help="without ending")
    options = parser.parse_args()
    # Ended by a signal it takes its pods along too: left to run they would slow the next measurement down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    path = options.out.with_suffix(".json")
    found = json.loads(path.read_text()) if path.exists() and not options.quick else {}
    for name in options.parts:
        if options.missing and name in found.get("parts", {}):
            continue
        say(f"{name} ...")
        started = time.monotonic()
        measured = measure_part(name, is_quick=options.quick)
        say(f"{name}: {time.monotonic() - started:.0f} s")
        found = {"machine": description(), "kubernetes": KUBERNETES, "parts": found.get("parts", {}) | {name: measured}}
        write(found, options.out)
    for row in found.get("goals", []):
        say(f"{'met' if row['met'] else 'NOT met'}: {row['goal']}: {row['measured']} ({row['at']} {row['bound']})")


def say(words: str) -> None:
    sys.stderr.write(f"benchmark: {time.strftime('%H:%M:%S')}  {words}\n")


def measure_part(name: str, *, is_quick: bool) -> dict[str, Any]:
    """In a namespace of its own."""
    head = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_before": round(os.getloadavg()[0], 2),
    }
    with namespace() as (cluster, space), tempfile.TemporaryDirectory() as folder:
        bench = Bench(QUICK if is_quick else FULL, cluster, space, Path(folder), say)
        # The event loop and the collector are those of the process that runs trials.
        with rare_full_collections():
            return head | uvloop.run(PARTS[name](bench))


@contextlib.contextmanager
def namespace() -> Iterator[tuple[ClusterAccess, str]]:
    cluster = ClusterAccess(Layout.of_this_machine())
    name = f"benchmark-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    try:
        cluster.kubectl("wait", f"--namespace={name}", "--for=create", "serviceaccount/default", "--timeout=30s")
        yield cluster, name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["kubectl", "wait", "--for=delete", f"namespace/{name}"], timeout=60, capture_output=True)


def write(found: dict[str, Any], out: Path) -> None:
    found["goals"] = goals(found["parts"])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    out.with_suffix(".md").write_text(page(found, out.name))
    draw(found["parts"], out.with_suffix(".png"))


if __name__ == "__main__":
    main()
