"""The agents that a rollout can name: which class Harbor imports, which API it speaks, and where it runs.

Pure data: nothing here imports Harbor or an agent. `settings.py` beside it holds each agent's options under the same
names, and a test holds the two together. Adding an agent means a class, its options there, and a line here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Api = Literal["chat", "responses", "messages"]
"""Chat completions, OpenAI's Responses, Anthropic's Messages: what the session's endpoint is asked in."""


@dataclass(frozen=True, slots=True)
class NamedAgent:
    """One line of the table."""

    import_path: str
    """`module:Class` of a Harbor agent."""
    api: Api | None
    """None: it asks no model."""
    runs_inside: bool = False
    """Whether it runs inside the sandbox, and so reaches its model through what is let into it."""
    tools: str | None = None
    """Name of the tools that its sandbox needs (see `tools.py`); None: nothing beside the image."""


_OURS = "agentic.rollout.agents"
_HARBORS = f"{_OURS}.installed"

AGENTS: Mapping[str, NamedAgent] = MappingProxyType(
    {
        "shell": NamedAgent(f"{_OURS}.shell:ShellAgent", "chat"),
        "tool-shell": NamedAgent(f"{_OURS}.tool_shell:ToolShellAgent", "chat"),
        "inside-shell": NamedAgent(f"{_OURS}.inside_shell:InsideShellAgent", "chat", runs_inside=True),
        "code-interpreter": NamedAgent(f"{_OURS}.code_interpreter:CodeInterpreterAgent", "chat"),
        "scripted": NamedAgent(f"{_OURS}.scripted:ScriptedAgent", None),
        "mini-swe-agent": NamedAgent(f"{_HARBORS}:PrebakedMiniSweAgent", "chat", True, "mini-swe-agent"),
        "swe-agent": NamedAgent(f"{_HARBORS}:PrebakedSweAgent", "chat", True),
        "terminus-2": NamedAgent(f"{_OURS}.terminus:ConnectedTerminus2", "chat", tools="terminus-2"),
        "openhands": NamedAgent(f"{_HARBORS}:PrebakedOpenHands", "chat", True, "openhands"),
        "claude-code": NamedAgent(f"{_HARBORS}:PrebakedClaudeCode", "messages", True, "claude-code"),
        "codex": NamedAgent(f"{_HARBORS}:PrebakedCodex", "responses", True, "codex"),
        "opencode": NamedAgent(f"{_HARBORS}:PrebakedOpenCode", "chat", True, "opencode"),
    }
)
"""By the name in `rollout.agent.kind`."""
