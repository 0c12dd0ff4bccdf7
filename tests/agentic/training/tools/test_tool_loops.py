"""verl's loops with a grade and a record; and a trajectory that goes on whatever a tool does."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentic.models.tiny.arithmetic import boxed, called
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, token_digest
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.training.rollout_metrics import rollout_metrics
from agentic.training.tools.code_service import serve
from agentic.training.tools.settings import CodeSandboxSettings

if TYPE_CHECKING:
    from tool_loop_rig import LoopRig, SandboxTool


# The first import of verl takes longer than a test may on a busy machine.
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "LoopRig":
    from tool_loop_rig import LoopRig

    rig = LoopRig(tmp_path)
    for name, value in rig.environment.items():
        monkeypatch.setenv(name, value)
    return rig


async def raises() -> None:
    raise ValueError("no such thing")


async def raises_at_length() -> None:
    raise ValueError("x" * 100_000)


async def hangs() -> None:
    await asyncio.sleep(3600)


async def blocks() -> None:
    time.sleep(4)


def response(**fields: Any) -> Any:
    from tool_loop_rig import ToolResponse

    return ToolResponse(**fields)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (lambda: raises, "Error executing tool 'code_interpreter': no such thing"),
    "raises at length": (lambda: raises_at_length, "Error: tool code_interpreter gave more than 5000 characters"),
    "hangs": (lambda: hangs, "Error: tool code_interpreter took longer than 0.5 s"),
    "blocks": (lambda: blocks, "Error: tool code_interpreter took longer than 0.5 s"),
    "megabytes": (
        lambda: (response(text="y" * 3_000_000), 0.0, {}),
        "Error: tool code_interpreter gave more than 5000 characters",
    ),
    "a text": (lambda: "42", "Error executing tool"),
    "no response": (lambda: ("42", 0.0, {}), "Error: tool code_interpreter failed: AttributeError"),
    "nothing": (lambda: None, "Error executing tool"),
    "a reward that is text": (lambda: (response(text="42"), "much", {}), "gave the reward 'much', which is no number"),
    "a reward that is no number": (lambda: (response(text="42"), float("nan"), {}), "gave the reward 'nan'"),
    "metrics that are none": (lambda: (response(text="42"), 0.0, 7), "gave metrics of type int"),
    "a picture": (lambda: (response(image=[1]), 0.0, {}), "returned a picture or a video"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_tool_gives_the_model_a_short_error_and_the_trajectory_goes_on(rig: "LoopRig", kind: str) -> None:
    from tool_loop_rig import Fixed

    make, error = BAD[kind]
    started = time.monotonic()
    outputs, engine = await rig.run([called("1"), boxed("42")], [Fixed(make())], call_seconds=0.5)
    assert time.monotonic() - started < 4
    _, given = rig.responses(outputs[0])
    assert error in given
    assert len(given) < 700
    assert len(engine.prompts) == 2
    assert rig.records()[0].outcome is Outcome.SOLVED


async def test_after_a_tool_that_blocks_the_next_call_is_answered(rig: "LoopRig") -> None:
    from tool_loop_rig import Fixed

    await rig.run([called("1"), boxed("42")], [Fixed(blocks)], call_seconds=0.3)
    fine = Fixed((response(text="42"), 0.0, {}))
    outputs, _ = await rig.run([called("1"), boxed("42")], [fine], call_seconds=0.3)
    assert "42" in rig.responses(outputs[0])[1]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [("other", {}, "Unknown function 'other'"), ("code_interpreter", {"cod": 1}, "needs an argument code")],
)
async def test_a_wrong_call_is_told_to_the_model(
    rig: "LoopRig", name: str, arguments: dict[str, int], told: str
) -> None:
    from tool_loop_rig import SandboxTool, call

    tool = SandboxTool({"type": "native", "sandbox_fusion_url": "http://127.0.0.1:9/run_code"})
    outputs, _ = await rig.run([call(name, arguments), boxed("41")], [tool])
    assert told in rig.responses(outputs[0])[1]
    assert rig.records()[0].outcome is Outcome.FAILED


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator["SandboxTool"]:
    from tool_loop_rig import SandboxTool

    async with serve(CodeSandboxSettings(run_seconds=3), BubblewrapSandbox(), tmp_path / "images", key="k") as url:
        yield SandboxTool({"type": "native", "sandbox_fusion_url": url, "key": "k", "success_reward": 0.25})


async def test_code_is_run_and_its_output_comes_back(rig: "LoopRig", sandbox: "SandboxTool") -> None:
    from tool_loop_rig import call

    code = call("code_interpreter", {"code": "I try\n```py\nx = 6 * 7\nx\n```\n"})
    outputs, engine = await rig.run([code, boxed("42")], [sandbox])
    assert engine.prompts[1].endswith("<|im_start|>tool\n42<|im_end|><|im_start|>assistant\n")
    record = rig.records()[0]
    assert (record.outcome, record.reward, record.turns, record.tool_reward) == (Outcome.SOLVED, 1.0, 2, 0.25)
    assert outputs[0].num_turns == 4
    assert record.token_digests == (token_digest(outputs[0].response_ids, outputs[0].response_mask),)


async def test_a_traceback_goes_back_to_the_model(rig: "LoopRig", sandbox: "SandboxTool") -> None:
    outputs, _ = await rig.run([called("sympy.sqrt(3)"), boxed("1")], [sandbox])
    assert "NameError: name 'sympy' is not defined" in rig.responses(outputs[0])[1]
    assert rig.records()[0].tool_reward == 0.0


async def test_tool_rewards_reach_the_metrics_and_by_a_setting_the_reward(
    rig: "LoopRig", sandbox: "SandboxTool"
) -> None:
    replies = [called("1"), called("2"), boxed("41")]
    outputs, _ = await rig.run(replies, [sandbox], reward_weight=0.5)
    assert outputs[0].reward_score == 0.25
    assert outputs[0].extra_fields["tool_rewards"] == [0.25, 0.25]
    metrics = rollout_metrics(rig.records())
    assert metrics["rollouts/tool_reward/mean"] == metrics["rollouts/tool_reward/max"] == 0.5
    assert metrics["rollouts/turns/max"] == 3


async def test_a_validation_knows_no_bonus(rig: "LoopRig", sandbox: "SandboxTool") -> None:
    outputs, _ = await rig.run([called("1"), boxed("42")], [sandbox], split="validation", reward_weight=0.5)
    assert outputs[0].reward_score == 1.0
    assert rig.records(Phase.VALIDATION)[0].reward == 1.0


async def test_a_code_sandbox_that_is_gone_is_infra_and_trains_nothing(rig: "LoopRig") -> None:
    from tool_loop_rig import SandboxTool

    tool = SandboxTool({"type": "native", "sandbox_fusion_url": "http://127.0.0.1:9/run_code", "answer_seconds": 1})
    outputs, _ = await rig.run([called("1"), boxed("42")], [tool])
    assert outputs == []
    record = rig.records()[0]
    assert (record.outcome, record.reward) == (Outcome.INFRA, None)
    assert "the code sandbox at http://127.0.0.1:9/run_code gave no answer" in (record.infra_reason or "")


async def test_an_answer_in_a_tools_output_is_not_the_policys(rig: "LoopRig") -> None:
    from tool_loop_rig import Fixed

    tool = Fixed((response(text=boxed("42")), 0.0, {}))
    await rig.run([called("1"), "no idea"], [tool])
    assert rig.records()[0].outcome is Outcome.FAILED


async def test_turns_are_bounded(rig: "LoopRig") -> None:
    from tool_loop_rig import Fixed

    outputs, engine = await rig.run([called("1")] * 9, [Fixed((response(text="42"), 0.0, {}))])
    assert len(engine.prompts) == 4
    assert outputs[0].num_turns == 8


@pytest.mark.parametrize(("reply", "reward"), [(boxed("42"), 1.0), (boxed("41"), 0.0), ("42", 0.0)])
async def test_a_single_turn_is_graded_and_recorded(rig: "LoopRig", reply: str, reward: float) -> None:
    outputs = await rig.run_single(reply)
    assert outputs[0].reward_score == reward
    assert rig.records()[0].turns == 1
    assert outputs[0].extra_fields["reward_extra_info"]["resolved"] == reward


async def test_a_prompt_that_verl_had_to_cut_is_an_overflow_and_no_failure(rig: "LoopRig") -> None:
    (output,) = await rig.run_single(boxed("41"), question="What is 6*7? " * 100)
    assert len(output.prompt_ids) == 400
    assert (rig.records()[0].outcome, output.reward_score) == (Outcome.CONTEXT_OVERFLOW, 0.0)
