"""Settings of rollouts: the agent, the clock of a trial, retries of lost ones, the reward, and the proxy.

A trial's clock has three parts: `start_seconds` for the sandbox and the agent's setup, the agent's own time, and
`grading_seconds` for the verifier. All three lie within `deadline_seconds`; what is left after start and grading is the
agent's.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from agentic.proxy.settings import ProxySettings
from agentic.rollout.agents.settings import (
    AgentSettings,
    InsideShellAgentSettings,
    ScriptedAgentSettings,
    ShellAgentSettings,
    ToolShellAgentSettings,
)
from agentic.settings import Settings

__all__ = [
    "AgentSettings",
    "InsideShellAgentSettings",
    "RewardSettings",
    "RolloutSettings",
    "ScriptedAgentSettings",
    "ShellAgentSettings",
    "ToolShellAgentSettings",
    "TrialServerSettings",
]


class RewardSettings(Settings):
    """Bonuses on top of 1.0 for a resolved task, in training only: validation is the plain resolve rate. Both are off
    at 0; usual values are 0.1 and 0.05."""

    small_patch_bonus: float = Field(0.0, ge=0.0, le=0.5)
    """Added when the graded patch adds and removes at least one line and at most `small_patch_lines`."""
    small_patch_lines: int = Field(10, ge=1)
    """The largest patch that counts as small: added lines plus removed ones, so that a changed line counts twice."""
    fast_tests_bonus: float = Field(0.0, ge=0.0, le=0.5)
    """Added when the task's tests took at most `fast_tests_factor` times what they take on its reference solution,
    which is measured once for a task and run, in a sandbox of the same kind. A task without a solution gives none."""
    fast_tests_factor: float = Field(1.0, gt=0.0, le=10.0)
    """Below 1, only code that is faster than the reference's by so much earns the bonus. The times of short tests vary
    by some ten per cent between runs."""


class TrialServerSettings(Settings):
    """A trial server elsewhere (`python -m agentic.rollout.server`), and how it is reached."""

    url: str = Field(pattern=r"^https?://[^/\s]+(/[^\s]*)?$")
    """Such as `https://trials.example:8443`."""
    key_variable: str = "AGENTIC_TRIAL_SERVER_KEY"
    """The environment variable that holds the server's key, in every process that runs rollouts; unset: none is sent.
    On a cluster it comes from a Secret."""
    unreachable_seconds: float = Field(120.0, gt=0)
    """How long a server that gives no answer is asked again before the trial counts as lost; restarts take seconds."""


class RolloutSettings(Settings):
    """How one sample becomes a graded trial."""

    agent: AgentSettings = ShellAgentSettings()
    """The agent that works on the tasks."""
    deadline_seconds: float = Field(120.0, gt=0)
    """The whole trial, from creating the sandbox to the verifier's verdict. A trial cut here is an infra loss."""
    start_seconds: float = Field(30.0, gt=0)
    """Reserved within the deadline for starting the sandbox and setting the agent up."""
    grading_seconds: float = Field(30.0, gt=0)
    """Reserved within the deadline for the verifier. A task's own test script bounds its tests well below this, so that
    a patch that hangs is a failed test and not a lost verifier."""
    infra_retries: int = Field(2, ge=0)
    """How often a trial that was lost to infrastructure is tried again, each time in a new session and sandbox."""
    infra_backoff_seconds: float = Field(0.5, ge=0)
    """Wait before the first such retry; doubles with each further one, up to ten seconds."""
    concurrency: int = Field(8, ge=1)
    """Trials that run at once; the others wait, and their clock has not started."""
    keep_trials: Literal["none", "infra", "failed", "all"] = "infra"
    """Which trials leave Harbor's folder behind in `runs/<run-id>/trials/`; `failed` includes `infra`. Thousands of
    rollouts a run would fill a disk, and an ordinary failed one tells little."""
    use_local_trial: bool = True
    """Whether trials run in this run's own trial runner; otherwise `trial_server` runs them, with the same results. The
    environment variable `REMOTE_AGENT_USE_LOCAL_TRIAL` sets it as well."""
    trial_server: TrialServerSettings | None = None
    """Needed when `use_local_trial` is false."""
    reward: RewardSettings = RewardSettings()
    """Bonuses on top of the resolve reward."""
    proxy: ProxySettings = ProxySettings()
    """The server that stands between the agents and the engine."""

    @property
    def agent_seconds(self) -> float:
        """What the agent may use of the deadline."""
        return self.deadline_seconds - self.start_seconds - self.grading_seconds

    @property
    def max_calls(self) -> int:
        """Generations that a session may start."""
        return self.agent.max_calls

    @property
    def max_call_tokens(self) -> int:
        """Tokens that one generation may sample."""
        return self.agent.max_call_tokens

    @model_validator(mode="after")
    def _deadline_holds_all_phases(self) -> Self:
        if self.agent_seconds <= 0:
            raise ValueError(
                f"rollout.deadline_seconds is {self.deadline_seconds:g} but start + grading need "
                f"{self.start_seconds + self.grading_seconds:g}: raise the deadline or lower "
                "rollout.start_seconds or rollout.grading_seconds"
            )
        return self

    @model_validator(mode="after")
    def _remote_trials_have_a_server(self) -> Self:
        if not self.use_local_trial and self.trial_server is None:
            raise ValueError(
                "rollout.use_local_trial is false but rollout.trial_server.url is not set: name the trial server, or "
                "set rollout.use_local_trial=true"
            )
        return self
