"""The table of agents, the options beside it, and the tools that it names."""

from typing import get_args

import pytest
from pydantic import TypeAdapter

from agentic.rollout.agents.__main__ import main
from agentic.rollout.agents.names import AGENTS
from agentic.rollout.agents.settings import AgentSettings, CodexSettings
from agentic.rollout.agents.tools import TOOLS, PythonTool, SystemTool, host_folder, inside_folder, shown_folders
from agentic.rollout.errors import ToolsError
from agentic.rollout.proxy_socket import SOCKET_INSIDE, sandbox_environment
from agentic.rollout.settings import RolloutSettings

MODELS = get_args(get_args(AgentSettings)[0])
KINDS = [model.model_fields["kind"].default for model in MODELS]


def test_every_agent_has_options_and_every_option_an_agent():
    assert sorted(KINDS) == sorted(AGENTS)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_made_of_its_name_alone_and_bounds_its_session(name):
    agent = TypeAdapter(AgentSettings).validate_python({"kind": name})
    settings = RolloutSettings(agent=agent)
    assert (agent.runs_inside, agent.api, agent.tools) == (
        AGENTS[name].runs_inside,
        AGENTS[name].api,
        AGENTS[name].tools,
    )
    assert min(settings.max_calls, settings.max_call_tokens) >= 1


@pytest.mark.parametrize("name", AGENTS)
def test_the_class_that_the_table_names_can_be_imported(name):
    module, _, cls = AGENTS[name].import_path.partition(":")
    assert hasattr(__import__(module, fromlist=[cls]), cls)


def test_tools_belong_to_agents_and_their_pins_hold_the_version():
    assert {agent.tools for agent in AGENTS.values()} - {None} == set(TOOLS)
    for tool in TOOLS.values():
        if isinstance(tool, PythonTool):
            pins = [line for line in tool.pins.read_text().splitlines() if line and not line.startswith(("#", " "))]
            assert all("==" in pin for pin in pins)
            assert any(pin.endswith(f"=={tool.version}") for pin in pins)


def test_a_sandbox_is_shown_the_folder_of_the_version(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    version = TOOLS["codex"].version
    assert shown_folders("codex") == {
        str(tmp_path / f"agentic-rl/agents/codex-{version}"): f"/opt/agentic/agents/codex-{version}"
    }
    assert shown_folders("terminus-2") == {}
    assert inside_folder("openhands").startswith("/opt/agentic/agents/openhands-")
    with pytest.raises(ToolsError, match="nobody"):
        host_folder("nobody")


def test_only_an_agent_that_leaves_logs_has_them_fetched(tmp_path):
    proxy = RolloutSettings().proxy.model_copy(update={"unix_socket": tmp_path / "p.sock"})
    spec = sandbox_environment(CodexSettings(), proxy)
    assert spec.kwargs == {"sockets": {str(tmp_path / "p.sock"): SOCKET_INSIDE}, "tools": "codex"}
    assert spec.import_path.endswith(":ToolsEnvironment")
    assert sandbox_environment(RolloutSettings().agent, proxy).import_path.endswith(":LoglessEnvironment")


def test_the_list_says_which_tools_this_machine_has(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (host_folder("codex") / "bin").mkdir(parents=True)
    assert main(["list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(AGENTS) < set(rows)
    assert str(tmp_path) in rows["codex"]
    assert rows["claude-code"].split()[1:3] == ["messages", "inside"]
    assert rows["claude-code"].endswith("not installed")
    assert all(not isinstance(TOOLS[name], SystemTool) or "of the image" in rows[name] for name in TOOLS)


def test_a_name_without_tools_is_refused_with_those_that_have_some(capsys):
    assert main(["install", "shell"]) == 78
    assert "codex" in capsys.readouterr().err
