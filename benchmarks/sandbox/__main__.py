"""`make bench-sandbox`: measures on the cluster for tests and writes docs/results/sandbox.json and its picture.

    python -m testbed run python -m benchmarks.sandbox [--quick] [--out docs/results/sandbox]

Run it while nothing else runs: latencies under load are the load's.
"""

import argparse
import asyncio
import json
import os
import platform
import time
import uuid
from pathlib import Path
from typing import Any

from benchmarks.sandbox.picture import draw
from benchmarks.sandbox.rounds import Plan, measure
from testbed.access import ClusterAccess
from testbed.layout import Layout
from testbed.tools import KUBERNETES

FULL = Plan(sandboxes=64, concurrencies=(1, 100, 1000), commands=300, megabytes=400, claims=30, held=1000)
QUICK = Plan(sandboxes=4, concurrencies=(1, 16), commands=32, megabytes=16, claims=3, held=50)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small plan, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/sandbox"), help="without ending")
    options = parser.parse_args()
    cluster = ClusterAccess(Layout.of_this_machine())
    namespace = f"benchmark-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("wait", f"--namespace={namespace}", "--for=create", "serviceaccount/default", "--timeout=30s")
    try:
        found = describe() | asyncio.run(measure(QUICK if options.quick else FULL, cluster, namespace))
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, options.out.with_suffix(".png"))


def describe() -> dict[str, Any]:
    """What it ran on."""
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "kernel": platform.release(),
            "load_before": round(os.getloadavg()[0], 2),
        },
        "kubernetes": KUBERNETES,
    }


if __name__ == "__main__":
    main()
