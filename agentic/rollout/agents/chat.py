"""One chat completion over HTTP, and what a refusal means.

The session's endpoint is asked once per reply, without a client retry: the proxy owns retries towards the engine, and a
second request for the same turn could sample twice. A spent context is Harbor's own exception for it, after which the
task's tests still decide: the work may have been done before. Everything else that keeps the model from answering is
`ModelUnavailableError`, which no outcome grades.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import aiohttp
from harbor.agents.installed.base import ContextWindowExceededError

from agentic.rollout.agents.inside_program import ContextSpentError, NoAnswerError, message_of
from agentic.rollout.errors import ModelUnavailableError

Message = dict[str, Any]
"""One chat message as the API carries it."""


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    """Where one rollout's model answers."""

    base_url: str
    """Ends in `/v1`; the chat completions lie below it."""
    api_key: str = field(repr=False)
    """Valid for this rollout's session alone."""
    model: str = "policy"


@runtime_checkable
class Connectable(Protocol):
    """An agent that asks a model, and is told where after it was made: the key never passes through the trial's
    configuration, which Harbor writes to disk."""

    def connect(self, endpoint: ChatEndpoint) -> None:
        """Use this endpoint; called once, before the trial runs."""


class ChatClient:
    """An open connection to one endpoint; use as an async context manager, which closes it."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._url = endpoint.base_url.rstrip("/") + "/chat/completions"
        self._model = endpoint.model
        # No time limit of its own: the trial's clock ends a call that takes too long.
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {endpoint.api_key}"}, timeout=aiohttp.ClientTimeout(total=None)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, tools: Sequence[Message] | None = None
    ) -> Message:
        """The assistant's next message.

        Raises ContextWindowExceededError when the session's budget is spent, ModelUnavailableError for any other answer
        than a completion.
        """
        body: Message = {"model": self._model, "messages": list(messages), "max_tokens": max_tokens}
        if tools:
            body["tools"] = list(tools)
        try:
            async with self._http.post(self._url, json=body) as response:
                text = await response.text()
                status = response.status
        except (aiohttp.ClientError, OSError) as error:
            raise ModelUnavailableError(
                f"no answer from the model's endpoint: {type(error).__name__}: {error}"
            ) from error
        return _message(status, text)


def _message(status: int, text: str) -> Message:
    try:
        return message_of(status, text)
    except ContextSpentError as error:
        raise ContextWindowExceededError(str(error)) from error
    except NoAnswerError as error:
        raise ModelUnavailableError(str(error)) from error
