"""The vendors' SDKs, each as a small agent with tools, on a scripted model."""

from pathlib import Path

import client_runs
import pytest
from client_models import call
from client_stage import scripted
from client_tasks import DONE, LOOK, REPAIR, TRY

pytestmark = [pytest.mark.clients, pytest.mark.timeout(120)]

PLAIN, THINKING = False, True

CASES = (
    ("openai-chat", PLAIN),
    ("openai-chat-stream", THINKING),
    ("openai-responses", PLAIN),
    ("openai-responses-stream", THINKING),
    ("openai-responses-continued", PLAIN),
    ("openai-responses-continued", THINKING),
    ("anthropic", PLAIN),
    ("anthropic-stream", THINKING),
    ("litellm", THINKING),
    ("litellm-stream", PLAIN),
)


def turn(*commands: str) -> str:
    return "I do that.\n" + "\n".join(call("bash", command=command) for command in commands)


@pytest.mark.parametrize(("style", "thinks"), CASES)
async def test_an_sdk_s_conversation_with_tools_is_one_path(tmp_path: Path, style: str, thinks: bool) -> None:
    async with scripted(tmp_path, [turn(LOOK, "ls"), turn(REPAIR), turn(TRY), DONE], thinks=thinks) as stage:
        finished = await stage.play(client_runs.sdk(style, stage.base_url, stage.key, [client_runs.TASK]))
        assert finished.output.splitlines()[-1] == DONE  # litellm prints hints before
        assert stage.box.repaired
        sealed = await stage.seal()
        assert len(sealed.trajectories) == 1
        assert len(stage.witness.prompts) == 4
