"""verl's checkpoint folders: which are whole, which holds what the engine can load.

A checkpoint is whole once `latest_checkpointed_iteration.txt` names its step or a later one: verl writes that file
last. A folder beyond it is what a killed trainer left and is ignored (verl itself ignores it too).
"""

import re
from pathlib import Path

_TRACKER = "latest_checkpointed_iteration.txt"


def latest_step(checkpoint_dir: Path) -> int | None:
    """The step that a resumed trainer starts from; `None` = from scratch."""
    try:
        return int((checkpoint_dir / _TRACKER).read_text())
    except FileNotFoundError:
        return None


def saved_steps(checkpoint_dir: Path) -> list[int]:
    """Steps of all whole checkpoints that are still there, ascending. Of one that verl has pruned the folder stays,
    with the place in the data in it."""
    latest = latest_step(checkpoint_dir)
    if latest is None:
        return []
    found = (re.fullmatch(r"global_step_(\d+)", path.name) for path in checkpoint_dir.iterdir())
    whole = (step for match in found if match and (step := int(match[1])) <= latest)
    return sorted(step for step in whole if policy_dir(checkpoint_dir, step).is_dir())


def policy_dir(checkpoint_dir: Path, step: int) -> Path:
    """The Hugging Face folder of a checkpoint: weights, configuration and tokenizer, ready for an engine."""
    return checkpoint_dir / f"global_step_{step}" / "actor" / "huggingface"
