"""OpenAI completions: `/v1/completions`, a raw prompt as text or ids, with the JSON fields of vLLM 0.24.

The prompt is a root of the session's graph, or goes on where its ids begin with a held path. Refused by name: several
prompts or choices, echo, suffix, and logprobs of tokens that were not sampled.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from ..conversation import Json, TextDelta
from ..errors import InvalidRequest, RequestRefused
from . import openai
from .base import CallReply, CallRequest, DeltaChunk, ReplyHead, TokenText
from .chat.request import StreamOptions
from .sampling import SamplingFields, format_constraint, structured_constraint
from .wire import Each, check, read_object

type TokenId = Annotated[int, Field(ge=0, lt=2**32)]
type Ids = Annotated[Each[TokenId], Field(min_length=1)]


class CompletionsRequest(SamplingFields):
    """The body of a completion request, as far as the proxy reads it."""

    prompt: str | Ids | Each[str] | Each[Ids]
    max_tokens: int | None = Field(None, gt=0)
    n: int | None = 1
    best_of: int | None = 1
    echo: bool | None = False
    suffix: str | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    response_format: Json | None = None
    structured_outputs: Json | None = None


class CompletionsWriter:
    """Streams one reply as text_completion events."""

    def __init__(self, request: CompletionsRequest, head: ReplyHead, token_text: TokenText) -> None:
        self._request = request
        self._options = request.stream_options or StreamOptions()
        self._head = head
        self._token_text = token_text
        self._sampled = 0
        self._offset = 0
        self._fields = {
            "id": f"cmpl-{head.reply_id}",
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
        }

    def begin(self) -> Iterable[str]:
        """Nothing, but for the prompt's ids if asked for."""
        if self._request.return_token_ids:
            yield self._event({"prompt_token_ids": list(self._head.prompt_ids)})

    def delta(self, chunk: DeltaChunk) -> Iterable[str]:
        """One event for what came of the text."""
        self._sampled += len(chunk.ids)
        text = "".join(delta.text for delta in chunk.deltas if isinstance(delta, TextDelta))
        fields: Json = {"text": text}
        if self._request.logprobs is not None and chunk.ids:
            fields["logprobs"] = _logprobs(chunk.ids, chunk.logprobs, self._token_text, self._offset)
            self._offset += sum(map(len, fields["logprobs"]["tokens"]))
        if self._request.return_token_ids and chunk.ids:
            fields["token_ids"] = list(chunk.ids)
        if text or len(fields) > 1:
            yield self._event(fields)

    def end(self, reply: CallReply) -> Iterable[str]:
        """Why it ended, usage if asked for, and the end mark."""
        yield self._event({"finish_reason": reply.finish, "stop_reason": reply.stop_reason})
        if self._options.include_usage:
            yield openai.data_event(self._fields | {"choices": [], "usage": openai.reply_usage(reply)})
        yield openai.DONE

    def fail(self, error: RequestRefused) -> Iterable[str]:
        """The error as an event, as vLLM sends it."""
        yield openai.data_event(openai.error_body(error))
        yield openai.DONE

    def _event(self, fields: Json) -> str:
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None, "stop_reason": None} | fields
        event = self._fields | {"choices": [choice]}
        if self._options.continuous_usage_stats:
            event["usage"] = openai.usage(len(self._head.prompt_ids), self._sampled)
        return openai.data_event(event)


class CompletionsDialect:
    """The dialect of `/v1/completions`."""

    name = "completions"
    path = "/completions"
    count_path: str | None = None

    def parse(self, body: bytes) -> CompletionsRequest:
        """The request, or InvalidRequest that names the first field at fault."""
        request = check(CompletionsRequest, read_object(body))
        refusals = [
            ("n", request.n not in (None, 1), "only n=1 is supported: send one request for each sample"),
            ("best_of", request.best_of not in (None, 1), "only 1 is supported: send one request for each sample"),
            ("logprobs", bool(request.logprobs), "only 0 is supported: the engine gives the sampled token's"),
            ("prompt_logprobs", request.prompt_logprobs is not None, "not supported: leave it out"),
            ("echo", bool(request.echo), "not supported: put the prompt before the reply yourself"),
            ("suffix", bool(request.suffix), "not supported: leave it out"),
            ("prompt", _prompt(request) is None, "one prompt that is not empty: send one request for each"),
        ]
        for field, refused, reason in refusals:
            if refused:
                raise InvalidRequest(f"{field}: {reason}", field)
        return request

    def to_call(self, request: CompletionsRequest) -> CallRequest:
        """What is asked for, free of the dialect."""
        constraint = format_constraint(request.response_format, "response_format")
        cap = request.max_tokens
        return CallRequest(
            messages=(),
            tools=(),
            may_call_tools=False,
            max_tokens=cap,
            asked=request.asked() | ({} if cap is None else {"max_tokens": cap}),
            constraint=constraint or structured_constraint(request.structured_outputs),
            prompt=_prompt(request),
        )

    def is_streamed(self, request: CompletionsRequest) -> bool:
        """`stream`."""
        return bool(request.stream)

    def reply_body(self, request: CompletionsRequest, reply: CallReply, token_text: TokenText) -> Json:
        """The reply as one JSON object."""
        ids, logprobs = request.return_token_ids, None
        if request.logprobs is not None:
            logprobs = _logprobs(reply.completion_ids, reply.logprobs, token_text, 0)
        choice = {
            "index": 0,
            "text": reply.message.content,
            "logprobs": logprobs,
            "finish_reason": reply.finish,
            "stop_reason": reply.stop_reason,
            "token_ids": list(reply.completion_ids) if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": list(reply.prompt_ids) if ids else None,
            "routed_experts": None,
        }
        return {
            "id": f"cmpl-{reply.reply_id}",
            "object": "text_completion",
            "created": reply.created,
            "model": reply.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": openai.reply_usage(reply),
            "kv_transfer_params": None,
        }

    def writer(self, request: CompletionsRequest, head: ReplyHead, token_text: TokenText) -> CompletionsWriter:
        """A CompletionsWriter."""
        return CompletionsWriter(request, head, token_text)

    def count_body(self, tokens: int) -> Json:
        """In the words of usage."""
        return {"prompt_tokens": tokens}

    def error_body(self, error: RequestRefused) -> Json:
        """As OpenAI sends it."""
        return openai.error_body(error)


def _prompt(request: CompletionsRequest) -> str | tuple[int, ...] | None:
    """The one prompt, or None if there is not exactly one."""
    prompt: Any = request.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0] if len(prompt) == 1 else None
    if isinstance(prompt, list):
        return tuple(prompt) or None
    return prompt or None


def _logprobs(ids: Any, logprobs: Any, token_text: TokenText, offset: int) -> Json:
    tokens, offsets = [token_text(token) for token in ids], []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    chosen = [{token: logprob} for token, logprob in zip(tokens, logprobs, strict=True)]
    return {"text_offset": offsets, "token_logprobs": list(logprobs), "tokens": tokens, "top_logprobs": chosen}
