"""OpenAI chat completions, with the JSON fields and nulls of vLLM 0.24 (invariant 11).

What would change the sampled distribution or cut tokens (stop strings, penalties, biases) is the session's business: it
is taken off the request and counted. Response formats and forced tools are constraints that the engine applies. What a
client relies on and the proxy cannot do exactly is refused by name: several choices, logprobs of tokens that were not
sampled, prefilled turns, images.
"""

from ...conversation import Json
from ...errors import RequestRefused
from .. import openai
from ..base import CallReply, CallRequest, ReplyHead, TokenText
from .reply import reply_body
from .request import ChatRequest, parse_body, to_call
from .stream import ChatWriter

__all__ = ["ChatDialect", "ChatRequest", "ChatWriter", "parse_body", "reply_body", "to_call"]


class ChatDialect:
    """The dialect of `/v1/chat/completions`."""

    name = "chat"
    path = "/chat/completions"
    count_path: str | None = None

    def parse(self, body: bytes) -> ChatRequest:
        """See parse_body."""
        return parse_body(body)

    def to_call(self, request: ChatRequest) -> CallRequest:
        """See to_call."""
        return to_call(request)

    def is_streamed(self, request: ChatRequest) -> bool:
        """`stream`."""
        return bool(request.stream)

    def reply_body(self, request: ChatRequest, reply: CallReply, token_text: TokenText) -> Json:
        """See reply_body."""
        return reply_body(request, reply, token_text)

    def writer(self, request: ChatRequest, head: ReplyHead, token_text: TokenText) -> ChatWriter:
        """A ChatWriter."""
        return ChatWriter(request, head, token_text)

    def count_body(self, tokens: int) -> Json:
        """In the words of usage."""
        return {"prompt_tokens": tokens}

    def error_body(self, error: RequestRefused) -> Json:
        """As OpenAI sends it."""
        return openai.error_body(error)
