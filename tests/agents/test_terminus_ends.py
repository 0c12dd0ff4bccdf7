"""However Terminus-2 ends by what its policy types or asks for, the trial is graded by what is there."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from agent_stage import REPAIR, Played, roll_out
from client_models import Script, make_model

from agentic.proxy import CallSampling, ScriptedReply
from agentic.rollout.agents.settings import Terminus2Settings
from agentic.rollout.outcomes import Outcome

pytestmark = [
    pytest.mark.agents,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),  # litellm's own types
]

LONG = "I look at it from all sides. " * 40


@pytest.fixture(autouse=True)
def _short_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The path of a socket has to be short."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def types(*keystrokes: str) -> str:
    commands = [{"keystrokes": keys, "duration": 0.2} for keys in keystrokes]
    return json.dumps({"analysis": "I look.", "plan": "I act.", "commands": commands, "task_complete": False})


async def play(
    folder: Path, *turns: str, fails_at: int | None = None, settings: Terminus2Settings, response_tokens: int = 400_000
) -> Played:
    """One rollout; the engine breaks at this call."""
    model = make_model(folder / "models", thinks=False)
    script = Script(model, turns, {})
    asked = 0

    def reply(prompt_ids: Sequence[int], sampling: CallSampling, request_id: str) -> ScriptedReply:
        nonlocal asked
        asked += 1
        said = script(prompt_ids, sampling, request_id)
        return replace(said, fail_after=0) if fails_at is not None and asked >= fails_at else said

    return await roll_out(folder, settings, model, reply, response_tokens=response_tokens)


@pytest.mark.parametrize(
    "keystrokes",
    [("exit\n", "ls\n"), ("tmux kill-server\n", "ls\n"), ("echo \0\n",), ("echo \ud800\n",)],
    ids=["ends-its-shell", "ends-its-terminal", "types-a-nul", "types-no-character"],
)
@pytest.mark.parametrize(("first", "outcome"), [("ls\n", Outcome.FAILED), (f"{REPAIR}\n", Outcome.SOLVED)])
async def test_keys_that_end_it_take_no_grade_away(
    tmp_path: Path, keystrokes: tuple[str, ...], first: str, outcome: Outcome
) -> None:
    settings = Terminus2Settings(max_turns=3, context_tokens=400_000)
    played = await play(tmp_path, types(first), types(*keystrokes), types("ls\n"), settings=settings)
    assert played.result.verdict.outcome is outcome, str(played)


async def test_a_policy_that_talks_until_its_calls_are_spent_has_failed(tmp_path: Path) -> None:
    settings = Terminus2Settings(max_turns=2, max_tokens=64, context_tokens=400_000)
    played = await play(tmp_path, *[LONG] * 4, settings=settings)
    assert played.sealed.calls == 2
    assert (played.result.verdict.outcome, played.result.reward) == (Outcome.FAILED, 0.0), str(played)


@pytest.mark.parametrize(("first", "outcome"), [("ls\n", Outcome.CONTEXT_OVERFLOW), (f"{REPAIR}\n", Outcome.SOLVED)])
async def test_a_spent_context_is_graded_by_what_is_there(tmp_path: Path, first: str, outcome: Outcome) -> None:
    settings = Terminus2Settings(max_turns=6, context_tokens=400_000, summarize=False)
    talk = types(f"echo {'x' * 1_500}\n")
    played = await play(tmp_path, types(first), *[talk] * 5, settings=settings, response_tokens=6_000)
    assert played.sealed.overflowed
    assert played.result.verdict.outcome is outcome, str(played)


async def test_an_engine_that_breaks_loses_the_rollout(tmp_path: Path) -> None:
    settings = Terminus2Settings(max_turns=3, context_tokens=400_000)
    played = await play(tmp_path, types("ls\n"), fails_at=2, settings=settings)
    assert played.result.verdict.outcome is Outcome.INFRA, str(played)
    assert "answer" in (played.result.verdict.infra_reason or "")
