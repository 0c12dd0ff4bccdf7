"""The reward of a graded rollout: 1.0 resolved, else 0.0, plus bonuses in training when resolved. Pure."""

from dataclasses import dataclass

from agentic.rollout.outcomes import Outcome
from agentic.rollout.settings import RewardSettings


@dataclass(frozen=True, slots=True)
class Measured:
    """What the verifier measured; None where it did not."""

    patch_lines: int | None = None
    """Lines that the graded patch adds and removes: what was undone is not in it."""
    tests_seconds: float | None = None
    """How long the task's tests took on it."""
    reference_seconds: float | None = None
    """How long they take on the reference solution, in a sandbox of the same kind."""


def score(outcome: Outcome, measured: Measured, settings: RewardSettings, *, training: bool) -> float | None:
    """The reward, or None for a rollout that is not graded. What was not measured earns no bonus."""
    if not outcome.is_graded:
        return None
    if outcome is not Outcome.SOLVED:
        return 0.0
    return 1.0 + (_bonuses(measured, settings) if training else 0.0)


def needs_reference(outcome: Outcome, settings: RewardSettings, *, training: bool) -> bool:
    """Whether the reference solution's test time can change the reward."""
    return training and outcome is Outcome.SOLVED and settings.fast_tests_bonus > 0


def _bonuses(measured: Measured, settings: RewardSettings) -> float:
    total = 0.0
    if measured.patch_lines is not None and 0 < measured.patch_lines <= settings.small_patch_lines:
        total += settings.small_patch_bonus
    if measured.tests_seconds is not None and measured.reference_seconds is not None:
        limit = settings.fast_tests_factor * measured.reference_seconds
        total += settings.fast_tests_bonus if measured.tests_seconds <= limit else 0.0
    return total
