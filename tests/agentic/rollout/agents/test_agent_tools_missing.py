"""A real trial of an agent whose tools nobody made on this machine."""

import shutil

import pytest

from agentic.rollout.agents.settings import CodexSettings
from agentic.rollout.proxy_socket import sandbox_environment
from agentic.rollout.settings import RolloutSettings
from agentic.rollout.trial import TrialRequest, sandboxed_runner
from agentic.sandbox.settings import BubblewrapSandbox

pytestmark = [
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

SANDBOX = BubblewrapSandbox(memory_mb=128, scratch_mb=16)


async def test_the_trial_is_lost_and_says_what_to_run(tmp_path, build_tasks, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    (task,) = await build_tasks(tmp_path, SANDBOX, "calc")
    runner = sandboxed_runner("run", tmp_path / "images", SANDBOX, 1)
    request = TrialRequest(
        trial_id="trial",
        task_dir=str(task),
        trials_dir=str(tmp_path / "trials"),
        agent=CodexSettings(),
        base_url="http://127.0.0.1:9/v1",
        api_key="secret-key",
        environment=sandbox_environment(CodexSettings(), RolloutSettings().proxy),
        deadline_seconds=40,
        start_seconds=10,
        grading_seconds=10,
    )
    try:
        facts = (await runner.run(request)).facts
    finally:
        await runner.close()
    assert (facts.rewards, facts.exception) == (None, "ToolsError")
    assert "python -m agentic.rollout.agents install codex" in facts.message
