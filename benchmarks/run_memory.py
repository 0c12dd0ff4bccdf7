"""Peak memory of a run while it goes on: the sum of the proportional set sizes of all its processes, sampled.

`python benchmarks/run_memory.py RUN_ID [--workspace FOLDER] [--every SECONDS]` prints one JSON line when the run has
ended. Proportional set sizes count shared pages once, so that their sum is what the run really takes from the machine.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

from agentic import processes

SILENT_SAMPLES = 3
"""Between two steps a run has no process for a moment; only a longer silence is its end."""


def proportional_bytes(pid: int) -> int:
    """One process's share; 0 when it has gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_id")
    parser.add_argument("--workspace", type=Path, default=Path("workspace"), metavar="FOLDER")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS")
    options = parser.parse_args()
    peak, samples, silent = 0, 0, 0
    while silent < SILENT_SAMPLES:
        pids = processes.find(options.run_id, options.workspace)
        silent = 0 if pids else silent + 1
        peak, samples = max(peak, sum(map(proportional_bytes, pids))), samples + bool(pids)
        time.sleep(options.every)
    result = {"run": options.run_id, "peak_gib": round(peak / 1024**3, 2), "samples": samples}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
