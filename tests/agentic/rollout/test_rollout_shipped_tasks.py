"""The hand-written tasks, as whole trials in real sandboxes: untouched they fail, with their own solution they pass."""

import asyncio
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

SHIPPED = sorted(path.parent for path in (Path(__file__).parents[3] / "tasks").glob("*/task.toml"))
SANDBOX = BubblewrapSandbox()


async def test_each_shipped_task_fails_untouched_and_passes_with_its_solution(tmp_path):
    results = await build_images(SHIPPED, open_store(tmp_path / "images", SANDBOX), ImageSettings(), SANDBOX)
    assert {result.task: result.reason for result in results if result.status == "failed"} == {}
    runner = sandboxed_runner("shipped", tmp_path / "images", SANDBOX, concurrency=2)

    async def reward(task, *commands):
        request = TrialRequest(
            trial_id=f"{task.name}-{len(commands)}",
            task_dir=str(task),
            trials_dir=str(tmp_path / "trials"),
            agent=ScriptedAgentSettings(commands=commands),
            base_url="http://127.0.0.1:9/v1",
            api_key="unused",
            deadline_seconds=55,
            start_seconds=10,
            grading_seconds=30,
        )
        return (await runner.run(request)).facts.rewards

    try:
        untouched = await asyncio.gather(*(reward(task) for task in SHIPPED))
        solved = await asyncio.gather(*(reward(task, (task / "solution/solve.sh").read_text()) for task in SHIPPED))
    finally:
        await runner.close()
    names = [task.name for task in SHIPPED]
    assert len(names) >= 12
    assert dict(zip(names, untouched, strict=True)) == {key: {"reward": 0.0} for key in names}
    assert dict(zip(names, solved, strict=True)) == {key: {"reward": 1.0} for key in names}
