"""SWE-agent by its name, as Harbor starts it, on a client with its request sequence; see `swe_agent_client.py`."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from agent_stage import LOOK, REPAIR, TASK, TRY, play
from client_models import call
from swe_agent_client import ASK_AGAIN

from agentic.rollout.agents.settings import SweAgentSettings

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
]

LONGEST = 600
LONG = "seq 1 2000"
DOCKERFILE = """\
FROM agentic/base:local
COPY sweagent /opt/python/bin/sweagent
COPY python /opt/sweagent-venv/bin/python
COPY lib/ /opt/sweagent-venv/lib/
COPY configs/ /opt/sweagent-configs/
WORKDIR /app
COPY app/ /app/
"""
PYTHON = '#!/bin/sh\nPYTHONPATH=/opt/sweagent-venv/lib exec python3 "$@"\n'
SWEAGENT = '#!/bin/sh\nexec /opt/sweagent-venv/bin/python /opt/sweagent-venv/lib/swe_agent_client.py "$@"\n'


@pytest.fixture(autouse=True)
def _short_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def make_task(folder: Path, parser: str, processor: dict[str, object]) -> Path:
    """The repair task, in an image that holds SWE-agent's stand-in where Harbor looks for SWE-agent."""
    task = folder / "business-days"
    shutil.copytree(TASK, task)
    environment = task / "environment"
    (environment / "Dockerfile").write_text(DOCKERFILE)
    for name, text in (("python", PYTHON), ("sweagent", SWEAGENT)):
        (environment / name).write_text(text)
        (environment / name).chmod(0o755)
    (environment / "lib").mkdir()
    shutil.copy(Path(__file__).with_name("swe_agent_client.py"), environment / "lib")
    shutil.copytree(
        Path(yaml.__file__).parent, environment / "lib/yaml", ignore=shutil.ignore_patterns("*.so", "__*__")
    )
    shutil.copy(yaml.__file__, environment / "lib/yaml")
    agent = {
        "templates": {"system_template": "You are a helpful assistant.", "max_observation_length": LONGEST},
        "tools": {"parse_function": {"type": parser}},
        "history_processors": [processor],
    }
    (environment / "configs").mkdir()
    for name in ("default", "default_backticks"):
        (environment / "configs" / f"{name}.yaml").write_text(yaml.safe_dump({"agent": agent}))
    return task


def fenced(command: str) -> str:
    return f"I do that.\n```\n{command}\n```"


async def test_by_tool_calls_with_marks_that_move_and_a_question_that_is_forgotten(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", "function_calling", {"type": "cache_control", "last_n_messages": 2})
    calls = [call("bash", command=command) for command in (LOOK, LONG, REPAIR, TRY)]
    turns = [calls[0], "I forgot to act.", calls[1], calls[2], calls[3], call("submit")]
    played = await play(tmp_path, SweAgentSettings(), turns, task=task)
    assert played.result.sealed is not None
    assert played.result.sealed.calls == 6
    assert ASK_AGAIN in played.prompts[2]
    assert ASK_AGAIN not in played.prompts[3]
    assert "characters were elided" in played.prompts[3]
    # What was asked again is no part of what follows, so that goes on from before it.
    assert played.causes({"after the forgotten question": LONG, "task": "business days"}) == [
        "task",
        "after the forgotten question",
    ]


async def test_by_fenced_blocks_with_old_observations_left_out(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", "thought_action", {"type": "last_n_observations", "n": 2})
    commands = (LOOK, LONG, "ls", REPAIR, TRY, "submit")
    settings = SweAgentSettings(actions="thought_action")
    played = await play(tmp_path, settings, [fenced(command) for command in commands], task=task)
    assert played.result.sealed is not None
    assert played.result.sealed.calls == 6
    left_out = [prompt.count("Old environment output: (") for prompt in played.prompts]
    assert left_out == [0, 0, 0, 1, 2, 3]
    assert played.causes({"left out": "Old environment output: (", "task": "business days"}) == [
        "task",
        *["left out"] * 3,
    ]
