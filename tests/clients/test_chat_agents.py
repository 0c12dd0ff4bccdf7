"""Agents that speak chat completions, on a scripted model: opencode, mini-swe-agent, Terminus-2."""

import json
from pathlib import Path

import client_runs
import pytest
from client_models import call
from client_stage import Stage, staged

pytestmark = [pytest.mark.clients, pytest.mark.timeout(120)]

LOOK, REPAIR, TRY = "cat calc.py", "sed -i 's/a - b/a + b/' calc.py", "python3 -c 'import calc; print(calc.add(2, 3))'"


async def finish(stage: Stage, run: client_runs.Run) -> None:
    """The client runs to its end, repairs the file, and was refused nothing."""
    finished = await stage.play(run)
    assert finished.code == 0, f"{finished}\n{stage.tap.refused}"
    assert not stage.tap.refused
    assert stage.box.repaired, str(finished)


async def test_opencode_repairs_a_file_and_asks_for_a_title_at_the_same_time(tmp_path: Path) -> None:
    turns = [f"I do that.\n{call('bash', command=command, description='a step')}" for command in (LOOK, REPAIR, TRY)]
    asides = {"You are a title generator": "Repair of add"}
    async with staged(tmp_path, [*turns, "Done: add adds."], asides) as stage:
        await finish(stage, client_runs.opencode(stage.base_url, stage.key))
        await stage.seal()
        assert len(stage.prompts) == 5
        known = {"title": "You are a title generator", "task": "You are opencode"}
        assert sorted(stage.causes(known)) == ["task", "title"]


async def test_mini_swe_agent_repairs_a_file(tmp_path: Path) -> None:
    commands = (LOOK, REPAIR, TRY, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    turns = [f"I do that.\n{call('bash', command=command)}" for command in commands]
    async with staged(tmp_path, turns) as stage:
        await finish(stage, client_runs.mini_swe_agent(stage.base_url, stage.key))
        await stage.seal()
        assert len(stage.prompts) == 4
        assert stage.causes({"task": "Please solve this issue"}) == ["task"]


async def test_terminus_2_repairs_a_file_in_its_terminal(tmp_path: Path) -> None:
    def turn(keystrokes: str, done: bool = False) -> str:
        commands = [{"keystrokes": f"{keystrokes}\n", "duration": 0.5}] if keystrokes else []
        return json.dumps({"analysis": "I look.", "plan": "I act.", "commands": commands, "task_complete": done})

    turns = [turn(LOOK), turn(REPAIR), turn(TRY), turn("", done=True), turn("", done=True)]
    async with staged(tmp_path, turns) as stage:
        await finish(stage, client_runs.terminus_2(stage.base_url, stage.key))
        await stage.seal()
        assert len(stage.prompts) == 5
        assert stage.causes({"task": "Task Description:"}) == ["task"]
