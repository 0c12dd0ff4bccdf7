"""What a policy prints, kills or writes inside decides no outcome; a call that the engine left unanswered does.

A stand-in takes mini-swe-agent's place among its tools: it asks for a reply, runs it as a command, prints what came of
it, and ends with the words of the client library when it gets no answer. Harbor's class, which reads those words, is
the real one.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from agent_stage import Played, roll_out
from client_models import Script, make_model

from agentic.proxy import CallSampling, ScriptedReply
from agentic.rollout.agents.settings import MiniSweAgentSettings
from agentic.rollout.agents.tools import host_folder
from agentic.rollout.outcomes import Outcome

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
]

STAND_IN = """\
#!/usr/bin/env python3
import json, os, subprocess, sys, urllib.error, urllib.request

base = next(word.partition("api_base=")[2] for word in sys.argv if "api_base=" in word)
messages = [{"role": "user", "content": "Repair it."}]
for turn in range(4):
    request = urllib.request.Request(base.rstrip("/") + "/chat/completions", method="POST")
    request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    request.add_header("Content-Type", "application/json")
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    try:
        with urllib.request.urlopen(request, body) as response:
            reply = json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        sys.exit(f"litellm.ServiceUnavailableError: status {error.code}")
    except OSError as error:
        sys.exit(f"litellm.APIConnectionError: Connection refused: {error}")
    if reply == "done":
        break
    ran = subprocess.run(["sh", "-c", reply], capture_output=True, text=True)
    print(ran.stdout + ran.stderr, flush=True)
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": ran.stdout or "-"}]
"""

NO_NETWORK = "echo 'curl: (6) Could not resolve host: pypi.org'"
KILL_PROGRAM = "kill -9 $PPID"
KILL_RELAY = 'for p in /proc/[0-9]*; do grep -qs relay.py "$p/cmdline" && kill -9 "${p#/proc/}"; done; true'
RUIN_LOGS = r"for name in trajectory mini-swe-agent.trajectory; do printf '\377' > /logs/agent/$name.json; done"
ODD_LOGS = """\
echo '{"steps": [1, null]}' > /logs/agent/trajectory.json; echo '[1]' > /logs/agent/mini-swe-agent.trajectory.json"""


@pytest.fixture(autouse=True)
def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = host_folder("mini-swe-agent") / "bin" / "mini-swe-agent"
    program.parent.mkdir(parents=True)
    program.write_text(STAND_IN)
    program.chmod(0o755)
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


async def play(folder: Path, *turns: str, fails_at: int | None = None) -> Played:
    """One rollout of the stand-in; the engine breaks at this call."""
    model = make_model(folder / "models", thinks=False)
    script = Script(model, turns, {})
    asked = 0

    def reply(prompt_ids: Sequence[int], sampling: CallSampling, request_id: str) -> ScriptedReply:
        nonlocal asked
        asked += 1
        said = script(prompt_ids, sampling, request_id)
        return replace(said, fail_after=0) if fails_at is not None and asked >= fails_at else said

    return await roll_out(folder, MiniSweAgentSettings(), model, reply)


@pytest.mark.parametrize(
    ("turns", "exception"),
    [
        ((f"{NO_NETWORK} > /proc/$PPID/fd/1; {KILL_PROGRAM}",), "NetworkConnectionError"),
        ((NO_NETWORK, KILL_PROGRAM), "NetworkConnectionError"),
        ((KILL_RELAY, "echo never"), "NetworkConnectionError"),
        ((RUIN_LOGS, "done"), None),
        ((ODD_LOGS, "done"), None),
    ],
    ids=["prints-and-ends", "prints-then-ends", "kills-the-relay", "ruins-logs", "writes-odd-logs"],
)
async def test_nothing_that_a_policy_does_inside_takes_its_zero_away(
    tmp_path: Path, turns: tuple[str, ...], exception: str | None
) -> None:
    played = await play(tmp_path, *turns)
    assert played.result.trial is not None
    assert played.result.trial.facts.exception == exception, str(played)
    assert (played.result.verdict.outcome, played.result.reward) == (Outcome.FAILED, 0.0), str(played)


async def test_an_engine_that_leaves_a_call_unanswered_loses_the_rollout_by_the_sessions_word(tmp_path: Path) -> None:
    played = await play(tmp_path, "true", fails_at=2)
    assert played.result.verdict.outcome is Outcome.INFRA, str(played)
    assert "the model left the agent without an answer" in (played.result.verdict.infra_reason or "")
    assert played.sealed.cut.get("engine", 0) >= 1
