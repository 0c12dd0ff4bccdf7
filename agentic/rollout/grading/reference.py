"""How long a task's tests take on its reference solution: what `fast_tests_bonus` compares with.

Measured once for a task and run, when the first bonus depends on it, by a trial like the rollout's own: the same
runner, sandbox and verifier, with the solution's commands in an agent's place. The figure stays in the run's folder,
for all processes and for a run that goes on; who needs it meanwhile waits. A task without a solution, or whose solution
is not resolved, has none, and then there is no bonus. Neither has one whose every trial was lost: an answer for some
rollouts of a group and none for the others would make rewards differ by luck.
"""

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import io
import json
import logging
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

from agentic.files import write_json
from agentic.rollout.outcomes import RESOLVED_KEY
from agentic.rollout.settings import ScriptedAgentSettings
from agentic.rollout.trial import TrialControl, TrialRequest, TrialResult
from agentic.tasks.harbor_format import SOLUTION

_log = logging.getLogger(__name__)

CHUNK_CHARACTERS = 60_000
"""Of an encoded solution in one command: the kernel takes 128 KiB for one word."""

TRIES = 3
"""Trials of the solution, when they are lost."""

_LOOK_SECONDS = 0.2

NO_MODEL = "http://127.0.0.1:9/v1"
"""The solution asks nobody."""


def solution_commands(solution: Path) -> tuple[str, ...]:
    """Brings the folder to /solution, as Harbor does for its reference agent, runs it there and removes it again."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(solution, arcname=".")
    text = base64.b64encode(buffer.getvalue()).decode()
    chunks = [text[start : start + CHUNK_CHARACTERS] for start in range(0, len(text), CHUNK_CHARACTERS)]
    return (
        "mkdir -p /solution",
        *(f"printf %s {chunk} >> /solution/.archive" for chunk in chunks),
        "base64 -d < /solution/.archive | tar -xz --no-same-owner -C /solution && rm /solution/.archive",
        "chmod +x /solution/solve.sh && /solution/solve.sh; rm -rf /solution",
    )


async def reference_seconds(like: TrialRequest, trials: TrialControl, folder: Path) -> float | None:
    """The reference solution's test time for the task of `like`; `folder` holds what was measured before."""
    task = Path(like.task_dir)
    known = folder / f"{task.name}.json"
    if known.is_file():
        return _seconds(json.loads(known.read_text()))
    if not (task / SOLUTION).is_file():
        return None
    async with _alone(folder / f".{task.name}.lock"):
        if known.is_file():
            return _seconds(json.loads(known.read_text()))
        found = await _measure(like, trials)
        await asyncio.to_thread(write_json, known, {"tests_seconds": found})
    return found


async def _measure(like: TrialRequest, trials: TrialControl) -> float | None:
    for attempt in range(1, TRIES + 1):
        result = await trials.run(await asyncio.to_thread(_request, like, attempt))
        if result.facts.rewards is not None:
            return _measured(result)
        _log.warning("reference of %s lost: %s: %s", like.task_dir, result.facts.exception, result.facts.message)
    return None


@contextlib.asynccontextmanager
async def _alone(lock: Path) -> AsyncIterator[None]:
    """While no other rollout, of this process or another, is within; the kernel lets go for one that dies."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(file)


def _request(like: TrialRequest, attempt: int) -> TrialRequest:
    task = Path(like.task_dir)
    commands = solution_commands(task / Path(SOLUTION).parent)
    unique = hashlib.sha256(like.trial_id.encode()).hexdigest()[:12]  # Two processes may measure at the same time.
    return like.model_copy(
        update={
            "trial_id": f"reference-{task.name[:150]}-{unique}-{attempt}",
            "agent": ScriptedAgentSettings(commands=commands, command_timeout_seconds=like.agent_seconds),
            "base_url": NO_MODEL,
            "api_key": "none",
            "keep": "none",
        }
    )


def _measured(result: TrialResult) -> float | None:
    is_resolved = (result.facts.rewards or {}).get(RESOLVED_KEY, 0.0) >= 1.0
    return result.grading.tests_seconds if is_resolved and result.grading is not None else None


def _seconds(known: dict[str, float | None]) -> float | None:
    return known.get("tests_seconds")
