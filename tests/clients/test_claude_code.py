"""Claude Code, which speaks Messages, on a scripted model."""

from pathlib import Path

import client_runs
import pytest
from client_models import call
from client_stage import Stage, scripted
from client_tasks import DONE, LOOK, REPAIR, TRY

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]

SUMMARY = "calc.add has been repaired and tried."
CAUSES = {
    "sub-agent": "cc_is_subagent=true",
    "compaction": "CRITICAL: Respond with TEXT ONLY.",
    "compacted": "This session is being continued from a previous conversation",
    "task": "calc.add subtracts.",
}


def bash(*commands: str) -> str:
    return "I do that.\n" + "\n".join(call("Bash", command=command, description="a step") for command in commands)


async def ask(stage: Stage, task: str, *options: str) -> str:
    """What Claude Code answers in the end."""
    return (await stage.play(client_runs.claude_code(stage.base_url, stage.key, task, options))).output.strip()


@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
async def test_claude_code_repairs_a_file_in_one_unbroken_conversation(tmp_path: Path, thinks: bool) -> None:
    turns = [bash(LOOK, "ls"), bash(REPAIR), bash(TRY), DONE]
    async with scripted(tmp_path, turns, thinks=thinks) as stage:
        assert await ask(stage, client_runs.TASK) == DONE
        assert stage.tap.fewest_pieces > 2
        assert stage.box.repaired
        await stage.seal()
        assert len(stage.prompts) == 4
        assert stage.causes(CAUSES) == ["task"]


async def test_claude_code_s_compaction_forks_and_begins_a_new_conversation(tmp_path: Path) -> None:
    asides = {CAUSES["compaction"]: f"<analysis>Short.</analysis>\n<summary>{SUMMARY}</summary>"}
    async with scripted(tmp_path, [bash(LOOK), bash(REPAIR), DONE, bash(TRY), DONE], asides) as stage:
        await ask(stage, client_runs.TASK)
        await ask(stage, "/compact", "--continue")
        assert await ask(stage, "Run it again.", "--continue") == DONE
        assert stage.box.repaired
        await stage.seal()
        assert stage.causes(CAUSES) == ["task", "compaction", "compacted"]
        assert SUMMARY in stage.prompts[-1]


async def test_claude_code_s_sub_agent_is_a_conversation_beside_its_own(tmp_path: Path) -> None:
    start = call("Agent", description="Count", prompt="Count the files.", subagent_type="general-purpose")
    asides = {CAUSES["sub-agent"]: "There is one file."}
    # The sub-agent runs in the background; where its end is told, before or after the repair, is a matter of time.
    async with scripted(tmp_path, [start, bash(REPAIR), bash(TRY), DONE, DONE, DONE], asides) as stage:
        await ask(stage, client_runs.TASK)
        assert stage.box.repaired
        await stage.seal()
        assert sorted(stage.causes(CAUSES)) == ["sub-agent", "task"]
        assert "There is one file." in stage.prompts[-1]
