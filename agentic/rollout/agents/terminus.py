"""Terminus-2, which runs outside the sandbox and acts through a terminal in it.

Harbor's class makes its client for the model when it is constructed, before the session's key is known, so it is
constructed once more, whole, when the endpoint is told. The key goes to that client alone: what is in Harbor's own
place for it would be in the environment of every command in the sandbox. Asks by litellm, from the process that runs
the trials.
"""

from typing import Any, override

from harbor.agents.terminus_2 import Terminus2
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from agentic.rollout.agents.chat import ChatEndpoint
from agentic.rollout.agents.prebaked import MODEL
from agentic.rollout.errors import AgentProgramError, RolloutConfigError


class ConnectedTerminus2(Terminus2):  # type: ignore[misc]
    """Harbor's Terminus-2 on a session's endpoint; fetches nothing and records no video of its terminal."""

    def __init__(
        self,
        *args: Any,
        max_turns: int,
        max_tokens: int,
        parser: str,
        context_tokens: int,
        summarize: bool,
        model_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        limits = {"max_input_tokens": context_tokens, "max_output_tokens": max_tokens}
        self._arguments = args
        self._options = {
            **kwargs,
            "model_name": model_name or f"openai/{MODEL}",
            "max_turns": max_turns,
            "suppress_max_turns_warning": True,
            "parser_name": parser,
            "enable_summarize": summarize,
            "model_info": {**limits, "input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
            "record_terminal_session": False,
        }
        self._is_connected = False
        super().__init__(*self._arguments, **self._options)

    def connect(self, endpoint: ChatEndpoint) -> None:
        """Use this endpoint; called once, before the trial runs."""
        named = {name: getattr(self, name) for name in ("session_id", "context_id")}
        client = {"api_base": endpoint.base_url, "llm_kwargs": {"api_key": endpoint.api_key}}
        super().__init__(*self._arguments, **self._options, **client)
        self._web_tools_noop_reported = True  # an error line a trial, for what a sandbox without network cannot have
        # The client has it now; Harbor would write its arguments into the trajectory, which goes into the sandbox too.
        self.options.llm_kwargs = None
        del self._model_connection_kwargs["llm_kwargs"]
        for name, value in named.items():  # the trial's own, given after construction
            setattr(self, name, value)
        self._is_connected = True

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        if not self._is_connected:
            raise RolloutConfigError("agent 'terminus-2' has no endpoint: call connect() before the trial runs")
        if (await environment.exec(command="tmux -V")).return_code != 0:
            raise AgentProgramError("agent terminus-2 finds no tmux in its sandbox: its image has to hold it")
        await super().setup(environment)

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        try:
            await super().run(instruction, environment, context)
        finally:
            context.metadata = {**(context.metadata or {}), "turns": self._n_episodes}
