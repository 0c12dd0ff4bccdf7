"""Codex, which speaks Responses, on a scripted model."""

from pathlib import Path

import client_runs
import pytest
from client_models import call
from client_stage import scripted
from client_tasks import DONE, LOOK, LOOK_LONG, REPAIR, TRY

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]

WINDOW = "model_context_window=400000"
SUMMARY = "calc.add has to add; nothing is repaired yet."
CAUSES = {
    "compaction": "You are performing a CONTEXT CHECKPOINT COMPACTION",
    "compacted": "Another language model started to solve this problem",
    "task": "calc.add subtracts.",
}


def turn(*commands: str) -> str:
    return "I do that.\n" + "\n".join(call("exec_command", cmd=command) for command in commands)


@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
async def test_codex_repairs_a_file_in_one_unbroken_conversation(tmp_path: Path, thinks: bool) -> None:
    turns = [turn(LOOK, "ls"), turn(REPAIR), turn(TRY), DONE]
    async with scripted(tmp_path, turns, thinks=thinks) as stage:
        finished = await stage.play(client_runs.codex(stage.base_url, stage.key, settings=[WINDOW]))
        assert stage.tap.fewest_pieces > 2
        assert stage.box.repaired
        assert finished.output.strip() == DONE
        await stage.seal()
        assert len(stage.prompts) == 4
        assert stage.causes(CAUSES) == ["task"]


async def test_codex_s_compaction_is_a_call_without_tools_and_a_new_conversation(tmp_path: Path) -> None:
    asides = {CAUSES["compaction"]: SUMMARY}
    async with scripted(tmp_path, [turn(LOOK_LONG), turn(REPAIR), turn(TRY), DONE], asides) as stage:
        settings = [WINDOW, "model_auto_compact_token_limit=42000"]
        await stage.play(client_runs.codex(stage.base_url, stage.key, settings=settings))
        assert stage.box.repaired
        await stage.seal()
        assert stage.causes(CAUSES) == ["task", "compaction", "compacted"]
        assert SUMMARY in stage.prompts[-1]
