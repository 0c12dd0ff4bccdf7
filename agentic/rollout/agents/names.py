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
    """Name of the prebaked folder that its sandbox needs (see `pins.py`); None: nothing beside the image."""


_OURS = "agentic.rollout.agents"

AGENTS: Mapping[str, NamedAgent] = MappingProxyType(
    {
        "shell": NamedAgent(f"{_OURS}.shell:ShellAgent", "chat"),
        "tool-shell": NamedAgent(f"{_OURS}.tool_shell:ToolShellAgent", "chat"),
        "inside-shell": NamedAgent(f"{_OURS}.inside_shell:InsideShellAgent", "chat", runs_inside=True),
        "scripted": NamedAgent(f"{_OURS}.scripted:ScriptedAgent", None),
    }
)
"""By the name in `rollout.agent.kind`."""
