"""Every agent that can be installed repairs a real task in a real sandbox, by its name in the settings."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_stage import DONE, LOOK, REPAIR, TRY, play
from client_models import call

from agentic.rollout.agents.settings import CodexSettings

pytestmark = [
    pytest.mark.agents,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _short_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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
