"""Terminus-2, which runs outside the sandbox and acts through a terminal in it.

Harbor's class makes its client for the model when it is constructed, before the session's key is known, so it is
constructed once more, whole, when the endpoint is told. The key goes to that client alone: what is in Harbor's own
place for it would be in the environment of every command in the sandbox. Asks by litellm, from the process that runs
the trials.

Its replies are keystrokes for a terminal, and Harbor's class raises when that terminal is gone, when a key is none, or
when the session refuses a further call. All of it is the policy's doing, so the trial goes on to be graded by what is
there. Only a model that gave no answer, and a sandbox that is lost, end it without a grade.
"""

from typing import Any, override

from harbor.agents.installed.base import ContextWindowExceededError, NonZeroAgentExitCodeError
from harbor.agents.terminus_2 import Terminus2
from harbor.environments.base import BaseEnvironment
from harbor.llms.base import ContextLengthExceededError
from harbor.models.agent.context import AgentContext
from openai import APIError

from agentic.rollout.agents.chat import ChatEndpoint
from agentic.rollout.agents.prebaked import MODEL
from agentic.rollout.errors import AgentProgramError, ModelUnavailableError, RolloutConfigError

REFUSALS = frozenset({400, 413, 422, 429})
"""Statuses by which a session refuses what it was asked, and lives on."""

_ITS_OWN = (ArithmeticError, AttributeError, LookupError, RuntimeError, TimeoutError, TypeError, ValueError)
"""What Harbor's class raises of keys and terminals. Sandboxes that are lost raise errors of this project's own tree."""


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
        except ContextLengthExceededError as error:
            raise ContextWindowExceededError("the session has no room for another request") from error
        except APIError as error:  # litellm's errors derive from this one.
            raise _meaning_of(error) from error
        except _ITS_OWN as error:
            raise NonZeroAgentExitCodeError(f"terminus-2 ended by {type(error).__name__}: {error}") from error
        finally:
            context.metadata = {**(context.metadata or {}), "turns": self._n_episodes}


class RequestRefusedError(NonZeroAgentExitCodeError):  # type: ignore[misc]
    """The session refused another request. The work is graded, unless some of its calls were left without an answer."""


def _meaning_of(error: APIError) -> Exception:
    """A refusal ends the agent's work; anything else is a model that gave no answer."""
    if getattr(error, "status_code", None) in REFUSALS:
        return RequestRefusedError(f"the session refused another request: {error}")
    return ModelUnavailableError(f"no answer from the model's endpoint: {type(error).__name__}: {error}")
