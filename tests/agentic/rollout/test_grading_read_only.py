"""A task that allows a read-only root is graded in one, by our own verifier in a fresh sandbox."""

import shutil
from pathlib import Path

import pytest

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.rollout.settings import ScriptedAgentSettings
from agentic.rollout.trial import TrialRequest, sandboxed_runner
from agentic.sandbox.providers import open_store
from agentic.sandbox.settings import BubblewrapSandbox

pytestmark = [
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

SHIPPED = Path(__file__).parents[3] / "tasks" / "calculator-precedence"
SAYS = '\n[metadata.sandbox]\nread_only_root = true\nwritable_paths = ["/app"]\n'
SANDBOX = BubblewrapSandbox()


async def test_changes_are_taken_brought_and_judged_where_only_some_folders_can_be_written(tmp_path):
    task = tmp_path / "tasks" / SHIPPED.name
    shutil.copytree(SHIPPED, task)
    with (task / "task.toml").open("a") as handle:
        handle.write(SAYS)
    await build_images([task], open_store(tmp_path / "images", SANDBOX), ImageSettings(), SANDBOX)
    runner = sandboxed_runner("read-only", tmp_path / "images", SANDBOX, concurrency=1)

    async def trial(name, *commands):
        request = TrialRequest(
            trial_id=name,
            task_dir=str(task),
            trials_dir=str(tmp_path / "trials"),
            agent=ScriptedAgentSettings(commands=commands),
            base_url="http://127.0.0.1:9/v1",
            api_key="unused",
            deadline_seconds=40,
            start_seconds=10,
            grading_seconds=25,
        )
        return await runner.run(request)

    try:
        untouched = await trial("untouched")
        solved = await trial("solved", (task / "solution/solve.sh").read_text())
    finally:
        await runner.close()
    assert (untouched.facts.rewards, untouched.facts.exception) == ({"reward": 0.0}, None)
    assert (solved.facts.rewards, solved.facts.exception) == ({"reward": 1.0}, None)
    assert solved.grading.mode == "fresh"
