"""Were the tokens trained the tokens sampled? Compares two independent traces of a run.

The proxy's side: `token_digests` in the rollout records, taken from sealed sessions. The trainer's side:
`trained.jsonl`, written from the rows that verl really trains on. Both are SHA-256 over token ids and loss mask.

`python -m agentic.training.audit RUN_DIR` prints the verdict and exits with 1 if a trained row was never sampled.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from agentic import json_lines
from agentic.rollout.records import Phase, read_records


class AuditVerdict(BaseModel):
    """Counts of trained rows."""

    model_config = ConfigDict(frozen=True)

    steps: int
    trained: int
    matched: int

    @property
    def holds(self) -> bool:
        """Whether something was trained, and all of it was sampled."""
        return self.trained > 0 and self.matched == self.trained


def audit(run_dir: Path) -> AuditVerdict:
    """Match each step's trained rows against that step's rollouts, as multisets.

    Rows of a step that was trained twice, because the trainer was killed before its checkpoint, match the rollouts of
    both attempts.
    """
    trained: Counter[tuple[int, str]] = Counter()
    for row in json_lines.read(run_dir / "trained.jsonl").rows:
        trained[row["step"], row["digest"]] += 1
    sampled: Counter[tuple[int, str]] = Counter()
    for record in read_records(run_dir, Phase.TRAIN):
        sampled.update((record.step, digest) for digest in record.token_digests)
    return AuditVerdict(
        steps=len({step for step, _ in trained}), trained=trained.total(), matched=(trained & sampled).total()
    )


def main() -> int:
    """Print the verdict; 0 if it holds."""
    parser = argparse.ArgumentParser(prog="python -m agentic.training.audit", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="a run's folder, such as workspace/runs/demo")
    verdict = audit(parser.parse_args().run_dir)
    sys.stdout.write(verdict.model_dump_json() + "\n")
    return 0 if verdict.holds else 1


if __name__ == "__main__":
    sys.exit(main())
