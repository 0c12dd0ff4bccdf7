"""An answer earns the same by each loop: within verl, and through a sandbox whose checker knows no algebra."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.rollout.agents.settings import CodeInterpreterAgentSettings
from agentic.rollout.by_hand import ByHand, run_by_hand
from agentic.rollout.settings import RolloutSettings
from agentic.rollout.trial import TrialResult
from agentic.sandbox.providers import open_store
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.tasks.harbor_format import write_task
from agentic.tasks.problems.problem import Problem, make_task

# The first import of verl takes longer than a test may on a busy machine, as does the first of an algebra system.
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
]

VERDICTS = {
    "a number": ("42", r"It is \boxed{42}.", 1.0, False),
    "another number": ("42", r"\boxed{41}", 0.0, False),
    "the number as a fraction": (r"\frac{3}{2}", r"\boxed{1.5}", 1.0, False),
    "a root in another form": (r"2\sqrt{3}", r"\boxed{\sqrt{12}}", 1.0, True),
    "another root": (r"2\sqrt{3}", r"\boxed{\sqrt{13}}", 0.0, False),
    "an expression in another form": ("x^2+2x+1", r"\boxed{(x+1)^2}", 1.0, True),
    "the last of two boxes": ("x+y", r"\boxed{1} no, \boxed{y+x}", 1.0, True),
    "no box": ("42", "42", 0.0, False),
    "a box that takes too long": ("x", r"\boxed{9^{9^{9^9}}}", 0.0, False),
}
"""What is right, the reply, its reward, and whether algebra outside of the sandbox decides."""


async def in_a_sandbox(tmp_path: Path, store: Path, expected: str, reply: str) -> tuple[float | None, TrialResult]:
    """By the agent of `train.agent_loop=remote_agent`: its proxy, sandbox and grading."""
    task = tmp_path / "train-00000"
    write_task(make_task(Problem("What?", expected), task.name, "What?"), task)
    (tmp_path / "replies.json").write_text(json.dumps([reply]))
    agent = CodeInterpreterAgentSettings(max_tokens=400)

    async def build(task: Path, images: Path, settings: Any) -> None:
        (built,) = await build_images([task], open_store(images, settings), ImageSettings(), settings)
        assert built.status != "failed", built.reason

    order = ByHand(
        task=task,
        model=f"scripted:{tmp_path / 'replies.json'}",
        tokenizer=None,
        model_name=None,
        key_variable=None,
        out=tmp_path / "trials",
        images=store,
        settings=RolloutSettings(agent=agent, keep_trials="all", infra_retries=0),
        sandbox=BubblewrapSandbox(),
    )
    result = (await run_by_hand(order, build, lambda line: None)).result
    assert result.trial is not None
    return result.reward, result.trial


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.mark.parametrize("kind", VERDICTS)
async def test_each_loop_gives_an_answer_the_same_reward(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from tool_loop_rig import LoopRig

    expected, reply, reward, by_algebra = VERDICTS[kind]
    rig = LoopRig(tmp_path)
    for name, value in rig.environment.items():
        monkeypatch.setenv(name, value)
    (output,) = await rig.run_single(reply, answer=expected)
    remote, trial = await in_a_sandbox(tmp_path, store, expected, reply)
    assert (output.reward_score, remote) == (reward, reward), trial
    assert trial.grading is not None
    assert trial.grading.by_algebra is by_algebra
