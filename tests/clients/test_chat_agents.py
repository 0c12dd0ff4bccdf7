"""Agents that speak chat completions, on a scripted model: opencode, mini-swe-agent, Terminus-2."""

import json
from pathlib import Path

import client_runs
import pytest
from client_models import call
from client_stage import scripted
from client_tasks import DONE, LOOK, LOOK_LONG, REPAIR, TRY

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]

OPENCODE_ASIDES = {"You are a title generator": "Repair of add"}
OPENCODE_CAUSES = {"title": "You are a title generator", "task": '"calc.add subtracts.'}


def opencode_turn(*commands: str) -> str:
    return "I do that.\n" + "\n".join(call("bash", command=command, description="a step") for command in commands)


@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
async def test_opencode_repairs_a_file_and_asks_for_a_title_at_the_same_time(tmp_path: Path, thinks: bool) -> None:
    turns = [opencode_turn(LOOK, "ls"), opencode_turn(REPAIR), opencode_turn(TRY), DONE]
    async with scripted(tmp_path, turns, OPENCODE_ASIDES, thinks) as stage:
        finished = await stage.play(client_runs.opencode(stage.base_url, stage.key))
        assert stage.tap.fewest_pieces > 2
        assert stage.box.repaired
        assert DONE in finished.output
        await stage.seal()
        assert len(stage.witness.prompts) == 5
        assert sorted(stage.causes(OPENCODE_CAUSES)) == ["task", "title"]


async def test_opencode_s_compaction_is_a_side_request_and_a_new_conversation(tmp_path: Path) -> None:
    summary = "calc.add has to add; nothing is repaired yet."
    asides = OPENCODE_ASIDES | {"You are a context summarization agent": summary}
    turns = [opencode_turn(LOOK_LONG), opencode_turn(REPAIR), opencode_turn(TRY), DONE]
    async with scripted(tmp_path, turns, asides) as stage:
        await stage.play(client_runs.opencode(stage.base_url, stage.key, context_tokens=40_000))
        assert stage.box.repaired
        await stage.seal()
        known = {"compaction": "You are a context summarization agent", "compacted": summary} | OPENCODE_CAUSES
        assert sorted(stage.causes(known)) == ["compacted", "compaction", "task", "title"]


async def test_mini_swe_agent_repairs_a_file(tmp_path: Path) -> None:
    commands = (LOOK, REPAIR, TRY, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    turns = [f"I do that.\n{call('bash', command=command)}" for command in commands]
    async with scripted(tmp_path, turns) as stage:
        await stage.play(client_runs.mini_swe_agent(stage.base_url, stage.key))
        assert stage.box.repaired
        await stage.seal()
        assert len(stage.witness.prompts) == 4
        assert stage.causes({"task": "Please solve this issue"}) == ["task"]


def terminus_turn(keystrokes: str, is_done: bool = False) -> str:
    commands = [{"keystrokes": f"{keystrokes}\n", "duration": 0.5}] if keystrokes else []
    return json.dumps({"analysis": "I look.", "plan": "I act.", "commands": commands, "task_complete": is_done})


async def test_terminus_2_repairs_a_file_in_its_terminal(tmp_path: Path) -> None:
    turns = [*map(terminus_turn, (LOOK, REPAIR, TRY)), terminus_turn("", is_done=True), terminus_turn("", is_done=True)]
    async with scripted(tmp_path, turns) as stage:
        await stage.play(client_runs.terminus_2(stage.base_url, stage.key))
        assert stage.box.repaired
        await stage.seal()
        assert len(stage.witness.prompts) == 5
        assert stage.causes({"task": "Task Description:"}) == ["task"]


async def test_terminus_2_hands_over_by_side_conversations_and_begins_anew(tmp_path: Path) -> None:
    causes = {
        "handed over": "Here are the answers the other agent provided",
        "answers": "The next agent has a few questions for you",
        "questions": "You are picking up work from a previous AI agent",
        "summary": "You are about to hand off your work to another AI agent",
        "task": "Task Description:",
    }
    asides = {
        causes["answers"]: "No, nothing was changed.",
        causes["questions"]: "Was anything changed?",
        causes["summary"]: "calc.add has to add; nothing is repaired yet.",
    }
    turns = [*map(terminus_turn, (LOOK_LONG, REPAIR)), terminus_turn("", is_done=True), terminus_turn("", is_done=True)]
    async with scripted(tmp_path, turns, asides) as stage:
        await stage.play(client_runs.terminus_2(stage.base_url, stage.key, context_tokens=12_000))
        assert stage.box.repaired
        await stage.seal()
        assert stage.causes(causes) == ["task", "questions", "handed over"]
