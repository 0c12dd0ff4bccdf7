"""What OpenAI's three APIs share on the way out: errors, events, usage, logprobs."""

from collections.abc import Sequence

from ..conversation import Json
from ..errors import ContextOverflow, RequestRefused
from .base import CallReply, TokenText
from .wire import write_json

CONTEXT_WORDS = "This model's maximum context length is"

DONE = "data: [DONE]\n\n"
"""The end mark of a stream of chat completions or completions."""


def error_body(error: RequestRefused) -> Json:
    """An error as OpenAI sends it; clients such as LiteLLM know a prompt that is too long by OpenAI's words."""
    message = str(error)
    if isinstance(error, ContextOverflow) and CONTEXT_WORDS not in message:
        message = f"{CONTEXT_WORDS} exceeded: {message}"
    return {"error": {"message": message, "type": error.kind, "param": error.param, "code": error.code}}


def data_event(payload: Json) -> str:
    """A server-sent event without a name."""
    return f"data: {write_json(payload)}\n\n"


def named_event(name: str, payload: Json) -> str:
    """A server-sent event with a name."""
    return f"event: {name}\ndata: {write_json(payload)}\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> Json:
    """Tokens of a call, with the fields of vLLM."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
    }


def reply_usage(reply: CallReply) -> Json:
    """Tokens of a whole reply."""
    return usage(len(reply.prompt_ids), len(reply.completion_ids))


def token_logprobs(ids: Sequence[int], logprobs: Sequence[float], token_text: TokenText) -> list[Json]:
    """Each sampled token with its logprob; of the others none is known, so `top_logprobs` is empty."""
    texts = [token_text(token) for token in ids]
    return [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in zip(texts, logprobs, strict=True)
    ]
