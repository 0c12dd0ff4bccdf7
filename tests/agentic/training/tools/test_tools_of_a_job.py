"""What a training job's tools get while it trains: a file that verl reads, and a code sandbox that answers."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentic.errors import PermanentError
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.training.jobs import TrainJob
from agentic.training.settings import RaySettings, TrainSettings
from agentic.training.tools.serving import tools_of
from agentic.training.tools.settings import CodeSandboxSettings, ToolSettings

LIGHT = CodeSandboxSettings(libraries=())
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("default")]  # verl's imports warn about each other


def job(tmp_path: Path, **train: Any) -> TrainJob:
    run_dir = tmp_path / "runs/r"
    run_dir.mkdir(parents=True)
    return TrainJob(
        run_id="r",
        run_dir=run_dir,
        model_dir=tmp_path / "models/m",
        data_dir=tmp_path / "datasets/d",
        store_dir=tmp_path / "images",
        train=TrainSettings(**train),
        ray=RaySettings(),
        rollout=RolloutSettings(),
        sandbox=BubblewrapSandbox(),
    )


@pytest.mark.parametrize("loop", ["remote_agent", "single_turn_agent"])
async def test_loops_without_tools_get_none(tmp_path: Path, loop: str) -> None:
    async with tools_of(job(tmp_path, agent_loop=loop)) as file:
        assert file is None


async def test_verl_makes_the_tool_of_the_file_and_its_sandbox_answers(tmp_path: Path) -> None:
    tools = ToolSettings(code=LIGHT, success_reward=0.5, call_seconds=20)
    async with tools_of(job(tmp_path, agent_loop="tool_agent", tools=tools)) as file:
        assert file is not None
        assert file.stat().st_mode & 0o777 == 0o600
        config = json.loads(file.read_text())["tools"][0]["config"]
        assert (config["answer_seconds"], config["success_reward"]) == (18.0, 0.5)
        from verl.tools.tool_registry import load_all_tools

        (tool,) = load_all_tools(str(file), None)
        instance, _ = await tool.create()
        response, reward, metrics = await tool.execute(instance, {"code": "```\n2**10\n```"})
        assert (response.text, reward, metrics) == ("1024", 0.5, {"code_succeeded": 1.0})
        await tool.execute(instance, {"code": "1 +"})
        assert await tool.calc_reward(instance) == 0.5
        await tool.release(instance)
        assert await tool.calc_reward(instance) == 0.0
    with pytest.raises(aiohttp.ClientError):
        async with aiohttp.ClientSession() as client, client.post(config["sandbox_fusion_url"], json={"code": "1"}):
            pass


async def test_a_file_of_the_users_own_is_handed_over_once_it_is_checked(tmp_path: Path) -> None:
    own = tmp_path / "tools.yaml"
    own.write_text("tools:\n- class_name: agentic.training.tools.weather_tool.WeatherTool\n  config: {type: native}\n")
    async with tools_of(job(tmp_path, agent_loop="tool_agent", tools=ToolSettings(config=str(own)))) as file:
        assert file == own


async def test_a_wrong_file_ends_the_job_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text('{"tools": []}')
    tools = ToolSettings(config=str(tmp_path / "tools.json"))
    with pytest.raises(PermanentError, match="lists no tools"):
        async with tools_of(job(tmp_path, agent_loop="tool_agent", tools=tools)):
            pass
