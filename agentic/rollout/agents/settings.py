"""Options of the agents that a rollout can name, one model each, told apart by `kind`; `names.py` has their classes.

`max_turns` and `max_tokens` bound every agent that asks a model, whoever wrote it: the session starts no generation
beyond the first and samples no reply beyond the second, whatever the agent asks for.
"""

from typing import Annotated, Literal

from pydantic import Field

from agentic.rollout.agents.names import AGENTS, Api
from agentic.settings import Settings


class _Agent(Settings):
    """What is known of every agent."""

    kind: str

    @property
    def runs_inside(self) -> bool:
        """Whether it runs inside the sandbox, and so reaches its model through what is let into it."""
        return AGENTS[self.kind].runs_inside

    @property
    def api(self) -> Api | None:
        """What it asks its model in; None: it asks none."""
        return AGENTS[self.kind].api

    @property
    def tools(self) -> str | None:
        """The prebaked folder that its sandbox needs, by name."""
        return AGENTS[self.kind].tools

    @property
    def leaves_logs(self) -> bool:
        """Whether it writes logs in the sandbox that are fetched when it has ended."""
        return False

    @property
    def max_calls(self) -> int:
        """Generations that its session may start; a session allows at least one."""
        return 1

    @property
    def max_call_tokens(self) -> int:
        """Tokens that one generation may sample."""
        return 1


class CommandAgentSettings(_Agent):
    """What every agent that runs one command a turn has in common."""

    max_turns: int = Field(4, ge=1)
    """Replies that the model may give, the one that submits included."""
    max_tokens: int = Field(48, ge=1)
    """Tokens that the model may sample in one reply."""
    command_timeout_seconds: float = Field(10.0, gt=0)
    """How long one command may run inside the sandbox; then its process group is killed there."""
    output_characters: int = Field(2000, ge=80)
    """What the model sees of one command's output; the middle of a longer one is cut out."""

    @property
    def max_calls(self) -> int:
        return self.max_turns

    @property
    def max_call_tokens(self) -> int:
        return self.max_tokens


class ShellAgentSettings(CommandAgentSettings):
    """Our own agent, plain text: one fenced `bash` block a reply, its output as the next user message."""

    kind: Literal["shell"] = "shell"


class ToolShellAgentSettings(CommandAgentSettings):
    """The same agent with a function tool `bash` instead of fenced text, for models that were taught tools."""

    kind: Literal["tool-shell"] = "tool-shell"


class InsideShellAgentSettings(CommandAgentSettings):
    """The plain-text agent as a program inside the sandbox, whose image needs a `python3`; it reaches the proxy through
    a Unix socket, or in a pod at `sandbox.proxy_port`, the only network there."""

    kind: Literal["inside-shell"] = "inside-shell"


class CodeInterpreterAgentSettings(CommandAgentSettings):
    """A tool `code_interpreter` that runs Python in the sandbox, until a reply has no call: that one is the answer. The
    agent of `train.agent_loop=tool_agent`, outside of verl."""

    kind: Literal["code-interpreter"] = "code-interpreter"


class ScriptedAgentSettings(_Agent):
    """A double that runs given commands and never asks a model."""

    kind: Literal["scripted"] = "scripted"
    commands: tuple[str, ...] = ()
    """Run in order, in the sandbox, with the sandbox's own limits."""
    command_timeout_seconds: float = Field(10.0, gt=0)
    """How long one command may run inside the sandbox."""


class _HarborAgent(_Agent):
    """What every agent that Harbor knows has in common."""

    max_turns: int = Field(100, ge=1)
    """Replies that the model may give, those of sub-agents, summaries and titles included."""
    max_tokens: int = Field(4096, ge=1)
    """Tokens that the model may sample in one reply."""

    @property
    def leaves_logs(self) -> bool:
        return True

    @property
    def max_calls(self) -> int:
        return self.max_turns

    @property
    def max_call_tokens(self) -> int:
        return self.max_tokens


class MiniSweAgentSettings(_HarborAgent):
    """mini-swe-agent, with a function tool `bash`; chat completions."""

    kind: Literal["mini-swe-agent"] = "mini-swe-agent"
    config_yaml: str | None = None
    """A configuration in mini-swe-agent's own YAML, laid over its `mini.yaml`."""


class SweAgentSettings(_HarborAgent):
    """SWE-agent; chat completions. On no registry: the sandbox's image has to hold it (see docs/agents.md)."""

    kind: Literal["swe-agent"] = "swe-agent"
    actions: Literal["function_calling", "thought_action"] = "function_calling"
    """How the model acts: by tool calls, or by one fenced block after its thought."""
    config: str | None = None
    """Path of a configuration in the image; None is the one of `actions` that SWE-agent ships."""
    context_tokens: int = Field(32768, ge=1024)
    """The model's context as SWE-agent counts it; beyond, it ends the run itself."""


class Terminus2Settings(_HarborAgent):
    """Terminus-2, outside the sandbox with a terminal in it, whose image needs `tmux`; chat completions."""

    kind: Literal["terminus-2"] = "terminus-2"
    parser: Literal["json", "xml"] = "json"
    """The form of the model's replies."""
    context_tokens: int = Field(32768, ge=1024)
    """The model's context as Terminus-2 counts it."""
    summarize: bool = True
    """Whether it hands over to a new conversation when its context is nearly full; otherwise the trial ends there."""


class OpenHandsSettings(_HarborAgent):
    """OpenHands by its SDK, with tools for a terminal, files and a task list; chat completions."""

    kind: Literal["openhands"] = "openhands"


class ClaudeCodeSettings(_HarborAgent):
    """Claude Code; Anthropic messages."""

    kind: Literal["claude-code"] = "claude-code"
    disallowed_tools: tuple[str, ...] = ()
    """Its tools that the model is not offered, such as `Task`, which starts sub-agents."""


class CodexSettings(_HarborAgent):
    """Codex; Responses."""

    kind: Literal["codex"] = "codex"
    context_tokens: int | None = Field(None, ge=1024)
    """The model's context as Codex counts it, for its compaction; None is what Codex takes for an unknown model."""


class OpenCodeSettings(_HarborAgent):
    """opencode; chat completions."""

    kind: Literal["opencode"] = "opencode"
    context_tokens: int = Field(131_072, ge=1024)
    """The model's context as opencode counts it, for its compaction."""


AgentSettings = Annotated[
    ShellAgentSettings
    | ToolShellAgentSettings
    | InsideShellAgentSettings
    | CodeInterpreterAgentSettings
    | ScriptedAgentSettings
    | MiniSweAgentSettings
    | SweAgentSettings
    | Terminus2Settings
    | OpenHandsSettings
    | ClaudeCodeSettings
    | CodexSettings
    | OpenCodeSettings,
    Field(discriminator="kind"),
]
"""Any of them."""
