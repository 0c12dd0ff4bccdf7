"""What is left to do of a training job, and whether it is still the same job. Pure but for reading the policy's files.

verl saves a step, then validates it, then logs both. A trainer that was killed in between leaves a checkpoint without
its validation; the next start validates it first.
"""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from agentic import files
from agentic.errors import PermanentError
from agentic.training.jobs import TrainJob
from agentic.training.settings import TrainSettings

_LARGE_BYTES = 64 * 1024 * 1024
"""Files above it are known by name and size alone: hashing the weights of a large model takes minutes."""

_MAY_CHANGE = {
    "train": {"steps", "patience", "keep_checkpoints", "poll_seconds", "threads", "gpu_memory_utilization", "offload"},
    "rollout": {"concurrency", "keep_trials", "infra_retries", "infra_backoff_seconds", "proxy"},
    "sandbox": {"start_concurrency", "starts_per_node", "prefetch", "pool", "api", "owner"},
}
"""Settings that change how fast a run goes or how long it is, not what its figures mean."""


class Plan(NamedTuple):
    """What the trainer is told."""

    is_done: bool
    validates_first: bool
    validates_only: bool


def plan(latest: int | None, validated: Collection[int], train: TrainSettings, *, stalled: bool) -> Plan:
    """What is left after the last whole checkpoint.

    Args:
        latest: its step; `None` when there is none.
        validated: steps whose validation is logged.
        stalled: validation has not risen for `train.patience` validations.
    """
    if latest is None:
        return Plan(is_done=False, validates_first=True, validates_only=False)
    is_last = latest >= train.steps
    missing = (is_last or latest % train.validate_every == 0) and latest not in validated
    ended = is_last or (stalled and not missing)
    return Plan(is_done=ended and not missing, validates_first=missing, validates_only=missing and is_last)


def identity(job: TrainJob) -> dict[str, Any]:
    """What a run's figures depend on, as plain data by setting."""
    sections = {"train": job.train, "rollout": job.rollout, "sandbox": job.sandbox}
    dumped = {
        name: section.model_dump(mode="json", exclude=_MAY_CHANGE.get(name)) for name, section in sections.items()
    }
    return {"model": _fingerprint(job.model_dir), "data": job.manifest().content_sha256, **dumped}


def claim(job: TrainJob) -> None:
    """Make the run's folder this job's, or find that it is.

    Raises:
        PermanentError: rollouts of a job with other settings are in it; their figures would be taken for this one's.
    """
    path, mine = job.run_dir / "identity.json", identity(job)
    try:
        known = json.loads(path.read_text()) if path.exists() else mine
    except ValueError as error:
        raise PermanentError(
            f"{path} cannot be read ({error}): delete it when the run's settings are as they were"
        ) from error
    changed = sorted(_differences(known, mine))
    if changed and (job.run_dir / "rollouts").exists():
        raise PermanentError(
            f"run {job.run_id} has rollouts under another {', '.join(changed)}: give a new --run-id, or change back"
        )
    if known != mine or not path.exists():
        files.write_json(path, mine)


def _differences(known: dict[str, Any], mine: dict[str, Any], prefix: str = "") -> list[str]:
    """Names of what differs, down to the setting."""
    names = []
    for key in known.keys() | mine.keys():
        before, now = known.get(key), mine.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            names += _differences(before, now, f"{prefix}{key}.")
        elif before != now:
            names.append(f"{prefix}{key}")
    return names


def _fingerprint(model_dir: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in model_dir.rglob("*") if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(model_dir)}\0{size}\0".encode())
        if size <= _LARGE_BYTES:
            digest.update(path.read_bytes())
    return digest.hexdigest()
