"""What the files of a run say about its troubles: the ends of the logs of steps that did not end well, and rewards.

A step counts as unfinished when its log is newer than its done marker, or there is none. Only those logs are searched:
a step that succeeded has overcome whatever it complained of.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentic import json_lines
from agentic.cluster.troubles import Evidence, Trouble, find_troubles, make_trouble
from steps.markers import read_markers

TAIL_BYTES = 200_000
"""Of a log: an error and its traceback stand at its end."""
FEW = 16
"""Graded rollouts of training below which nothing is said about rewards."""
LAST_WORDS_SECONDS = 5.0
"""A step still prints its result when its marker is there."""
LOST_SHARE = 0.5
"""More rollouts lost than this is worth a word."""


def find_run_troubles(run_dir: Path) -> list[Trouble]:
    """All of them, logs first."""
    found = find_troubles(Evidence(logs=read_tails(run_dir)))
    return [*found, *judge_rollouts(read_rollouts(run_dir))]


def read_tails(run_dir: Path) -> dict[str, str]:
    """Ends of the logs of unfinished steps, by the step's name."""
    finished: dict[str, float] = {}
    for marker in read_markers(run_dir):
        finished[str(marker["step"])] = float(marker["ended"])
    logs = sorted((run_dir / "logs").glob("*.log"))
    return {path.stem: _tail(path) for path in logs if not _is_finished(path, finished)}


def _is_finished(log: Path, finished: Mapping[str, float]) -> bool:
    """A fan-out's logs are numbered behind their step's name."""
    ended = [at for step, at in finished.items() if log.stem == step or log.stem.startswith(f"{step}-")]
    return bool(ended) and log.stat().st_mtime <= max(ended) + LAST_WORDS_SECONDS


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")


def read_rollouts(run_dir: Path) -> list[dict[str, Any]]:
    """Records of training, in the order in which they ended."""
    path = run_dir / "rollouts" / "train.jsonl"
    return json_lines.read(path).rows if path.exists() else []


def judge_rollouts(records: Sequence[Mapping[str, Any]]) -> Iterator[Trouble]:
    """Rewards that teach nothing, and rollouts that never came to have one, with what the commonest reason shows."""
    graded = [float(record["reward"]) for record in records if record.get("reward") is not None]
    steps = len({record.get("step") for record in records})
    if len(graded) >= FEW and steps > 1 and max(graded) <= 0.0:
        message = f"{len(graded)} graded rollouts of {steps} steps, mean and highest reward 0.0"
        yield make_trouble("rewards-all-zero", "rollouts of training", message)
    lost = [str(record.get("infra_reason") or "no reason") for record in records if record.get("outcome") == "infra"]
    if len(records) >= FEW and len(lost) > LOST_SHARE * len(records):
        reason, times = Counter(lost).most_common(1)[0]
        message = f"{len(lost)} of {len(records)} are lost; {times} of them: {reason}"
        yield make_trouble("rollouts-lost", "rollouts of training", message)
        yield from find_troubles(Evidence(logs={"of rollouts": reason}))
