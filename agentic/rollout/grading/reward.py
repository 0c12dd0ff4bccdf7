"""The reward of a graded rollout: 1.0 resolved, else 0.0, plus bonuses in training when resolved."""

from collections.abc import Mapping

from agentic.rollout.outcomes import Outcome
from agentic.rollout.settings import RewardSettings


def score(
    outcome: Outcome, rewards: Mapping[str, float] | None, settings: RewardSettings, *, training: bool
) -> float | None:
    """The reward, or None for a rollout that is not graded.

    A bonus needs the verifier's own measurement (`patch_lines`, `tests_seconds`); without it there is none.
    """
    if not outcome.is_graded:
        return None
    if outcome is not Outcome.SOLVED:
        return 0.0
    return 1.0 + (_bonuses(rewards or {}, settings) if training else 0.0)


def _bonuses(rewards: Mapping[str, float], settings: RewardSettings) -> float:
    total = 0.0
    if 0 < rewards.get("patch_lines", 0.0) <= settings.small_patch_lines:
        total += settings.small_patch_bonus
    if rewards.get("tests_seconds", float("inf")) <= settings.fast_tests_seconds:
        total += settings.fast_tests_bonus
    return total
