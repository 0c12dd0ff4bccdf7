"""verl's `tool_agent` and `single_turn_agent`, unchanged in what they sample, with a grade and a record of each.

The loops are verl's classes; what is added around them:
- the answer in the last reply's box is compared with the row's `ground_truth`, which decides the reward; by a setting a
  share of the tools' own rewards comes on top, in training only;
- every rollout leaves the same record as `remote_agent` leaves, so that metrics, validation curves, the audit of tokens
  and the report need not know which loop ran;
- a tool that raises, hangs, returns megabytes or another type gives the model a short error, and the trajectory goes
  on. A code sandbox that gives no answer is no fault of the policy: such a rollout is infra and goes to no training.
"""

import functools
import math
import time
from typing import Any, override

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.schemas import ToolResponse

from agentic.rollout.agent_loop_config import load_job, phase_of
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, PhaseSeconds, RolloutRecord, append_record, token_digest
from agentic.tasks.problems.answers import shared_checker
from agentic.tasks.problems.plain import boxed
from agentic.training.tools.sandbox_tool import LOST
from agentic.training.tools.tool_thread import ToolThread

ToolAnswer = tuple[ToolResponse, float, dict[str, Any]]
_REASON_CHARACTERS = 200


@functools.cache
def _tool_thread() -> ToolThread:
    """One for the process."""
    return ToolThread()


class _Recorded(AgentLoopBase):  # type: ignore[misc]
    """What both loops get: grade, reward and record."""

    def __init__(self, *args: Any, reward_weight: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reward_weight = reward_weight

    @override
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """The sample's one trajectory; none when it was lost to infrastructure."""
        started, clock = time.time(), time.monotonic()
        output: AgentLoopOutput = await super().run(sampling_params, **row)
        agent_seconds = time.monotonic() - clock
        lost = output.extra_fields.pop(LOST, None)
        expected = row["reward_model"]["ground_truth"]
        right = lost is None and await shared_checker().is_correct(self._answer(output), expected)
        phase = phase_of(row["extra_info"]["split"])
        tool_reward = float(sum(output.extra_fields.get("tool_rewards") or []))
        reward = float(right) + (self._reward_weight * tool_reward if phase is Phase.TRAIN else 0.0)
        record = RolloutRecord(
            rollout_id=f"{row['uid']}_{row['session_id']}",
            phase=phase,
            step=int(row["global_steps"]),
            task=row["extra_info"]["task"],
            split=row["extra_info"]["split"],
            outcome=self._outcome(output, right=right, lost=lost),
            reward=None if lost else reward,
            attempt=1,
            infra_reason=lost,
            turns=output.num_turns // 2,
            calls=output.num_turns // 2,
            tool_reward=tool_reward,
            sampled_tokens=sum(output.response_mask),
            token_digests=() if lost else (token_digest(output.response_ids, output.response_mask),),
            policy_version_min=output.extra_fields.get("min_global_steps"),
            policy_version_max=output.extra_fields.get("max_global_steps"),
            started=started,
            seconds=_seconds(output, agent_seconds, time.monotonic() - clock),
        )
        append_record(load_job().run_dir, record)
        if lost:
            return []
        output.reward_score = reward
        output.extra_fields["reward_extra_info"] = {
            "resolved": float(right),
            "turns": float(record.turns),
            "sampled_tokens": float(record.sampled_tokens),
            "tool_reward": tool_reward,
        }
        return [output]

    def _answer(self, output: AgentLoopOutput) -> str | None:
        """What stands in the box of the last reply; tokens that the policy did not sample cannot answer for it."""
        mask = output.response_mask
        begin = len(mask) - mask[::-1].index(0) if 0 in mask else 0
        return boxed(self.tokenizer.decode(output.response_ids[begin:], skip_special_tokens=True))

    def _outcome(self, output: AgentLoopOutput, *, right: bool, lost: str | None) -> Outcome:
        if lost is not None:
            return Outcome.INFRA
        if right:
            return Outcome.SOLVED
        # verl cuts a prompt that is too long at its beginning.
        is_cut = len(output.prompt_ids) >= self.rollout_config.prompt_length
        is_full = len(output.response_ids) >= self.rollout_config.response_length
        return Outcome.CONTEXT_OVERFLOW if is_cut or is_full else Outcome.FAILED


def _seconds(output: AgentLoopOutput, agent: float, total: float) -> PhaseSeconds:
    engine = float(output.metrics.generate_sequences)
    return PhaseSeconds(
        total=round(total, 3), agent=round(agent, 3), engine=round(engine, 3), grade=round(total - agent, 3)
    )


class RecordedSingleTurnLoop(_Recorded, SingleTurnAgentLoop):  # type: ignore[misc]
    """One reply, no tools."""


class RecordedToolLoop(_Recorded, ToolAgentLoop):  # type: ignore[misc]
    """Replies and tool calls in turn, as verl's ToolAgentLoop has them."""

    def __init__(self, *args: Any, call_seconds: float, response_limit_characters: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._call_seconds = call_seconds
        self._limit = response_limit_characters
        self._shown_characters = int(self.rollout_config.multi_turn.max_tool_response_length)
        # verl would cut what is too much before anybody could say so.
        self.max_tool_response_length = response_limit_characters + 1

    @override
    async def _call_tool(self, tool_call: Any, tools_kwargs: dict[str, Any], agent_data: Any) -> ToolAnswer:
        """verl's call, on the tools' own thread and with a bound on everything that comes back."""
        call = super()._call_tool(tool_call, tools_kwargs, agent_data)
        try:
            answer = await _tool_thread().call(call, self._call_seconds)
        except TimeoutError:
            return _error(tool_call.name, f"took longer than {self._call_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - tools are others' code, and a broken one must not end a trajectory
            return _error(tool_call.name, f"failed: {type(error).__name__}: {error}")
        wrong = self._fault_of(answer)
        if wrong is not None:
            return _error(tool_call.name, wrong)
        response, reward, metrics = answer
        return response.model_copy(update={"text": self._shown(response.text)}), float(reward), metrics

    def _fault_of(self, answer: Any) -> str | None:
        """What is wrong with a tool's answer, if anything."""
        if not (isinstance(answer, tuple) and len(answer) == 3 and isinstance(answer[0], ToolResponse)):
            return f"returned {type(answer).__name__}, not a response, a reward and metrics"
        response, reward, metrics = answer
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            return f"gave the reward {str(reward)[:40]!r}, which is no number"
        if not isinstance(metrics, dict):
            return f"gave metrics of type {type(metrics).__name__}"
        if len(response.text or "") > self._limit:
            return f"gave more than {self._limit} characters"
        if (response.image or response.video) and self.processor is None:
            return "returned a picture or a video, which this model cannot read"
        return None

    def _shown(self, text: str | None) -> str | None:
        """The part that the model sees: both ends of what is too long, without what no tokenizer takes."""
        if text is None:
            return None
        clean, half = text.encode(errors="replace").decode(), self._shown_characters // 2
        return clean if len(clean) <= self._shown_characters else f"{clean[:half]}...(truncated)...{clean[-half:]}"


def _error(tool: str, what: str) -> ToolAnswer:
    return ToolResponse(text=f"Error: tool {tool} {what}"[:_REASON_CHARACTERS]), 0.0, {}
