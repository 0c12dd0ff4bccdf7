"""Harbor's agents that run inside the sandbox, on prebaked tools; see `prebaked.py` for what they share."""

from typing import Any, override

import yaml
from harbor.agents.installed.claude_code import ClaudeCode
from harbor.agents.installed.codex import Codex
from harbor.agents.installed.mini_swe_agent import MiniSweAgent
from harbor.agents.installed.opencode import OpenCode
from harbor.agents.installed.openhands_sdk import OpenHandsSDK
from harbor.agents.installed.swe_agent import SweAgent
from harbor.environments.base import BaseEnvironment

from agentic.rollout.agents.prebaked import MODEL, PrebakedAgent
from agentic.rollout.agents.tools import inside_folder

_LITELLM = (("LITELLM_LOCAL_MODEL_COST_MAP", "True"),)
"""Or it looks for a price list at each start, and waits for it."""


class PrebakedMiniSweAgent(PrebakedAgent, MiniSweAgent):  # type: ignore[misc]
    """mini-swe-agent, by litellm."""

    tools = command = "mini-swe-agent"
    variables = (*_LITELLM, ("MSWEA_SILENT_STARTUP", "1"))

    def __init__(self, *args: Any, config_yaml: str | None, **kwargs: Any) -> None:
        config = yaml.safe_load(config_yaml) if config_yaml else None
        super().__init__(*args, model_name=f"openai/{MODEL}", config=config, **_without_name(kwargs))


class PrebakedSweAgent(PrebakedAgent, SweAgent):  # type: ignore[misc]
    """SWE-agent, by litellm; its image holds what Harbor would put there."""

    command = "sweagent"
    variables = _LITELLM

    def __init__(self, *args: Any, actions: str, config: str | None, context_tokens: int, **kwargs: Any) -> None:
        name = "default" if actions == "function_calling" else "default_backticks"
        self._config_path = config or f"/opt/sweagent-configs/{name}.yaml"
        limits: dict[str, Any] = {
            "per_instance_cost_limit": "0",
            "total_cost_limit": "0",
            "max_input_tokens": str(context_tokens),
        }
        super().__init__(*args, model_name=f"openai/{MODEL}", **limits, **_without_name(kwargs))
        self._extra_env["SWEAGENT_CONFIG"] = self._config_path


class PrebakedOpenHands(PrebakedAgent, OpenHandsSDK):  # type: ignore[misc]
    """OpenHands by its SDK and Harbor's runner of it."""

    tools = "openhands"
    command = "python"
    key_variable = "LLM_API_KEY"
    variables = (*_LITELLM, ("OPENHANDS_SUPPRESS_BANNER", "1"))

    def __init__(self, *args: Any, max_turns: int, **kwargs: Any) -> None:
        super().__init__(
            *args,
            model_name=f"openai/{MODEL}",
            model_api_format="openai_chat_completions",
            max_turns=max_turns,
            max_iterations=max_turns,
            **_without_name(kwargs),
        )

    @override
    async def install(self, environment: BaseEnvironment) -> None:
        """Harbor's runner script goes in as it does at each trial; the environment that it expects is a link."""
        await PrebakedAgent.install(self, environment)
        await self.exec_as_root(environment, f"ln -sfn {inside_folder(self.tools)} /opt/openhands-sdk-venv")
        await OpenHandsSDK.install(self, environment)

    @override
    async def ensure_system_dependencies(self, environment: BaseEnvironment, names: Any) -> None:
        """Nothing is fetched in a trial."""


class PrebakedClaudeCode(PrebakedAgent, ClaudeCode):  # type: ignore[misc]
    """Claude Code."""

    tools = "claude-code"
    command = "claude"
    key_variable = "ANTHROPIC_API_KEY"
    url_suffix = ""
    secrets = ("/logs/agent/sessions/.claude.json*",)

    def __init__(self, *args: Any, disallowed_tools: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(
            *args, model_name=MODEL, disallowed_tools=",".join(disallowed_tools) or None, **_without_name(kwargs)
        )


class PrebakedCodex(PrebakedAgent, Codex):  # type: ignore[misc]
    """Codex; Harbor removes the files that it writes the key to."""

    tools = command = "codex"

    def __init__(self, *args: Any, context_tokens: int | None, **kwargs: Any) -> None:
        config = {"model_context_window": context_tokens} if context_tokens else None
        super().__init__(*args, model_name=f"openai/{MODEL}", config=config, **_without_name(kwargs))


class PrebakedOpenCode(PrebakedAgent, OpenCode):  # type: ignore[misc]
    """opencode, with the policy as a provider of its own that speaks chat completions."""

    tools = command = "opencode"
    variables = (("OPENCODE_DISABLE_MODELS_FETCH", "1"),)

    def __init__(self, *args: Any, context_tokens: int, max_tokens: int, **kwargs: Any) -> None:
        model = {"name": MODEL, "tool_call": True, "limit": {"context": context_tokens, "output": max_tokens}}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": MODEL, "models": {MODEL: model}}
        super().__init__(
            *args,
            model_name=f"{MODEL}/{MODEL}",
            model_api_format="openai_chat_completions",
            opencode_config={"provider": {MODEL: provider}},
            max_tokens=max_tokens,
            **_without_name(kwargs),
        )


def _without_name(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Harbor names no model for agents that are given by path; what it passes in its place is None."""
    return {key: value for key, value in kwargs.items() if key != "model_name"}
