"""How each real client is run against a base URL and a key, headless and without asking anybody."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentic.rollout.agents.install import install

TASK = "calc.add subtracts. Repair it."


@dataclass(frozen=True, slots=True)
class Run:
    """One command line with its environment."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def packages(name: str) -> Path:
    """The packages of a client that is written in Python."""
    (folder,) = install(name).parents[1].glob("lib/python*/site-packages")
    return folder


def codex(base_url: str, key: str, task: str = TASK, settings: Sequence[str] = ()) -> Run:
    """Codex over Responses."""
    provider = f'{{name="policy",base_url="{base_url}",env_key="POLICY_KEY",wire_api="responses"}}'
    options = ["model=policy", "model_provider=policy", f"model_providers.policy={provider}", *settings]
    command = (
        *(str(install("codex")), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        *(part for option in options for part in ("-c", option)),
        task,
    )
    return Run(command, {"POLICY_KEY": key})


def claude_code(base_url: str, key: str, task: str = TASK, options: Sequence[str] = ()) -> Run:
    """Claude Code over Messages; it adds /v1 itself."""
    environment = {
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": "policy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",  # without it, it refuses to skip permissions as root
    }
    command = (str(install("claude-code")), "-p", task, "--dangerously-skip-permissions", *options)
    return Run(command, environment)


def opencode(base_url: str, key: str, task: str = TASK, context_tokens: int = 400_000) -> Run:
    """opencode over chat completions."""
    model = {"name": "policy", "tool_call": True, "limit": {"context": context_tokens, "output": 4096}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "policy",
        "options": {"baseURL": base_url, "apiKey": key},
        "models": {"policy": model},
    }
    settings = {
        "provider": {"policy": provider},
        "model": "policy/policy",
        "small_model": "policy/policy",
        "autoupdate": False,
        "share": "disabled",
    }
    environment = {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return Run((str(install("opencode")), "run", task), environment)


def mini_swe_agent(base_url: str, key: str, task: str = TASK, options: Sequence[str] = ()) -> Run:
    """mini-swe-agent over chat completions, by litellm."""
    options = (
        *("-m", "openai/policy", "-y", "--exit-immediately", "-l", "0", "-t", task, "-c", "mini.yaml"),
        *("-c", f"model.model_kwargs.api_base={base_url}"),
        *options,
    )
    environment = {
        "OPENAI_API_KEY": key,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": str(packages("mini-swe-agent")),
    }
    # Its environment belongs to the interpreter of sandboxes; ours stands in, without packages of its own.
    return Run((sys.executable, "-S", "-m", "minisweagent.run.mini", *options), environment)


def terminus_2(base_url: str, key: str, task: str = TASK, context_tokens: int = 200_000) -> Run:
    """Terminus-2 over chat completions, by litellm; its terminal is tmux in the box."""
    install("terminus-2")
    driver = Path(__file__).with_name("terminus_driver.py")
    environment = {"OPENAI_API_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return Run((sys.executable, str(driver), base_url, str(context_tokens), task), environment)


def sdk(style: str, base_url: str, key: str, questions: Sequence[str]) -> Run:
    """A conversation by a vendor's SDK; see sdk_driver.py for the styles."""
    driver = Path(__file__).with_name("sdk_driver.py")
    return Run((sys.executable, str(driver), style, base_url, key, *questions))
