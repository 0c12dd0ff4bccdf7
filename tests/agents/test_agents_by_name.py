"""Every agent that can be installed repairs a real task in a real sandbox, by its name in the settings."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from agent_stage import DONE, LOOK, REPAIR, TRY, play, roll_out
from client_models import Script, call, make_model

from agentic.proxy import CallSampling, ScriptedReply
from agentic.rollout.agents.settings import (
    ClaudeCodeSettings,
    CodexSettings,
    MiniSweAgentSettings,
    OpenCodeSettings,
    OpenHandsSettings,
    Terminus2Settings,
)
from agentic.rollout.outcomes import Outcome

pytestmark = [
    pytest.mark.agents,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),  # litellm's own types
]


@pytest.fixture(autouse=True)
def _short_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The path of a socket has to be short."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def says(*calls: str) -> str:
    return "\n".join(["I do that.", *calls])


async def test_codex(tmp_path: Path) -> None:
    turns = [*(says(call("exec_command", cmd=command)) for command in (LOOK, REPAIR, TRY)), DONE]
    played = await play(tmp_path, CodexSettings(context_tokens=400_000), turns)
    assert played.causes({"task": "business days"}) == ["task"]


async def test_claude_code(tmp_path: Path) -> None:
    turns = [*(says(call("Bash", command=command, description="a step")) for command in (LOOK, REPAIR, TRY)), DONE]
    played = await play(tmp_path, ClaudeCodeSettings(), turns)
    assert played.causes({"task": "business days"}) == ["task"]


async def test_opencode(tmp_path: Path) -> None:
    turns = [*(says(call("bash", command=command, description="a step")) for command in (LOOK, REPAIR, TRY)), DONE]
    played = await play(tmp_path, OpenCodeSettings(), turns, {"You are a title generator": "Repair"})
    assert sorted(played.causes({"title": "You are a title generator", "task": "business days"})) == ["task", "title"]


async def test_mini_swe_agent(tmp_path: Path) -> None:
    commands = (LOOK, REPAIR, TRY, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    played = await play(tmp_path, MiniSweAgentSettings(), [says(call("bash", command=command)) for command in commands])
    assert played.causes({"task": "business days"}) == ["task"]


async def test_terminus_2(tmp_path: Path) -> None:
    turns = [*map(terminus_turn, (LOOK, REPAIR, TRY)), terminus_turn("", is_done=True), terminus_turn("", is_done=True)]
    played = await play(tmp_path, Terminus2Settings(context_tokens=400_000), turns)
    assert played.causes({"task": "business days"}) == ["task"]


def terminus_turn(keystrokes: str, is_done: bool = False) -> str:
    commands = [{"keystrokes": f"{keystrokes}\n", "duration": 0.5}] if keystrokes else []
    return json.dumps({"analysis": "I look.", "plan": "I act.", "commands": commands, "task_complete": is_done})


async def test_openhands(tmp_path: Path) -> None:
    turns = [
        *(
            says(call("terminal", command=command, security_risk="LOW", summary="a step"))
            for command in (LOOK, REPAIR, TRY)
        ),
        says(call("finish", message=DONE)),
    ]
    played = await play(tmp_path, OpenHandsSettings(), turns)
    assert played.causes({"task": "business days"}) == ["task"]


async def test_an_engine_that_breaks_under_an_agent_loses_the_rollout(tmp_path: Path) -> None:
    model = make_model(tmp_path / "models", thinks=False)
    script = Script(model, [says(call("exec_command", cmd=LOOK))], {})

    def breaks(prompt_ids: Sequence[int], sampling: CallSampling, request_id: str) -> ScriptedReply:
        reply = script(prompt_ids, sampling, request_id)
        return replace(reply, fail_after=0) if "def between" in model.text(prompt_ids) else reply

    played = await roll_out(tmp_path, CodexSettings(context_tokens=400_000), model, breaks)
    assert played.result.verdict.outcome is Outcome.INFRA, str(played)
