"""A wrong tool configuration is refused by name before anything is started; the tools that ship have their schemas."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentic.errors import PermanentError
from agentic.training.preflight import preflight
from agentic.training.settings import RaySettings, TrainSettings
from agentic.training.tools.settings import ToolSettings
from agentic.training.tools.tool_config import check_tools, write_sandbox_tool

# The first import of verl takes longer than a test may on a busy machine.
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("default")]
SANDBOX = "agentic.training.tools.sandbox_tool.SandboxTool"
WEATHER = "agentic.training.tools.weather_tool.WeatherTool"
URL = "http://127.0.0.1:8660/run_code"


def written(tmp_path: Path, *tools: dict[str, Any]) -> Path:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({"tools": tools}))
    return path


def entry(name: str, **config: Any) -> dict[str, Any]:
    return {"class_name": name, "config": {"type": "native", **config}}


def test_the_tools_that_ship_are_made(tmp_path: Path) -> None:
    path = written(tmp_path, entry(SANDBOX, sandbox_fusion_url=URL), entry(WEATHER))
    assert check_tools(path) == ["code_interpreter", "get_current_temperature"]


def test_a_file_may_be_yaml(tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text(f"tools:\n- class_name: {WEATHER}\n  config: {{type: native}}\n")
    assert check_tools(path) == ["get_current_temperature"]


def test_the_file_of_the_code_sandbox_is_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "tool_config.json"
    write_sandbox_tool(path, sandbox_fusion_url=URL, key="k")
    assert path.stat().st_mode & 0o777 == 0o600
    assert check_tools(path) == ["code_interpreter"]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([], "lists no tools"),
        ([{"class_name": SANDBOX}], r"tools\.0\.config: Field required"),
        ([entry(SANDBOX, sandbox_fusion_url=URL) | {"name": "x"}], r"tools\.0\.name: Extra inputs"),
        ([{"class_name": SANDBOX, "config": {"type": "mcp"}}], r"tools\.0\.config\.type: Input should be 'native'"),
        ([entry("no.such.Tool")], r"tools\[0\] \(no\.such\.Tool\) cannot be imported: No module named 'no'"),
        ([entry(f"{SANDBOX}y", sandbox_fusion_url=URL)], "is no class derived from verl's BaseTool"),
        ([entry("json.dumps")], r"\(json\.dumps\) is no class derived"),
        ([entry(SANDBOX)], r"the config of SandboxTool is wrong at sandbox_fusion_url: Field required"),
        ([entry(SANDBOX, sandbox_fusion_url="here")], "sandbox_fusion_url is 'here': give an address"),
        ([entry(SANDBOX, sandbox_fusion_url=URL, retries=3)], "wrong at retries: Extra inputs"),
        ([entry(WEATHER), entry(WEATHER)], "two tools named get_current_temperature"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(tmp_path: Path, tools: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(PermanentError, match=message) as refused:
        check_tools(written(tmp_path, *tools))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_or_no_file_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="cannot be read"):
        check_tools(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(PermanentError, match="neither JSON nor YAML"):
        check_tools(tmp_path / "broken.json")


@pytest.mark.parametrize(("config", "told"), [({"sandbox_fusion_url": URL}, []), ({}, ["wrong at sandbox_fusion_url"])])
def test_a_run_is_told_of_a_wrong_file_before_anything_is_downloaded(
    tmp_path: Path, config: dict[str, Any], told: list[str]
) -> None:
    tools = ToolSettings(config=str(written(tmp_path, entry(SANDBOX, **config))))
    found = preflight(TrainSettings(agent_loop="tool_agent", tools=tools), RaySettings())
    lines = [problem.message for problem in found if "train.tools.config" in problem.message]
    assert len(lines) == len(told)
    assert all(part in line for part, line in zip(told, lines, strict=True))


async def test_the_weather_tool_reports_in_both_units() -> None:
    from agentic.training.tools.weather_tool import WeatherTool

    tool = WeatherTool({}, None)
    parameters = tool.get_openai_tool_schema().function.parameters
    assert parameters.required == ["location"]
    assert parameters.properties["unit"].enum == ["celsius", "fahrenheit"]
    instance, _ = await tool.create()
    response, reward, _ = await tool.execute(instance, {"location": "Paris"})
    assert json.loads(response.text) == {"temperature": 26.1, "location": "Paris", "unit": "celsius"}
    warm, _, _ = await tool.execute(instance, {"location": "Paris", "unit": "fahrenheit"})
    assert json.loads(warm.text)["temperature"] == 79.0
    wrong, _, _ = await tool.execute(instance, {"place": "Paris"})
    assert wrong.text.startswith("Error: ")
    assert (reward, await tool.calc_reward(instance)) == (0.0, 0.0)
    await tool.release(instance)


def test_settings_stay_light() -> None:
    code = "import sys, agentic.training.settings; print(sorted({'verl', 'fastapi', 'aiohttp'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
