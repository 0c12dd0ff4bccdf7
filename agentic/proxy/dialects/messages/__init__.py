"""Anthropic messages: `/v1/messages` and `/v1/messages/count_tokens`.

Thinking is shown to clients that turn it on, with a signature; what they give back of it is accepted with any
signature, and a turn is recognised without it. Cache marks, betas, metadata and fields that the proxy does not know are
accepted. Tools that Anthropic's servers run are left out of what the model is shown, and counted. Refused by name:
images and other parts that are no text, and prefilled turns.
"""

from ...conversation import Json
from ...errors import ContextOverflow, RequestRefused
from ..base import CallReply, CallRequest, ReplyHead, TokenText
from .reply import reply_body
from .request import MessagesRequest, parse_body, to_call
from .stream import MessagesWriter

__all__ = ["MessagesDialect", "MessagesRequest", "MessagesWriter", "error_body", "parse_body", "reply_body", "to_call"]

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessagesDialect:
    """The dialect of `/v1/messages`."""

    name = "messages"
    path = "/messages"
    count_path: str | None = "/messages/count_tokens"

    def parse(self, body: bytes) -> MessagesRequest:
        """See parse_body."""
        return parse_body(body)

    def to_call(self, request: MessagesRequest) -> CallRequest:
        """See to_call."""
        return to_call(request)

    def is_streamed(self, request: MessagesRequest) -> bool:
        """`stream`."""
        return bool(request.stream)

    def reply_body(self, request: MessagesRequest, reply: CallReply, _token_text: TokenText) -> Json:
        """See reply_body."""
        return reply_body(request, reply)

    def writer(self, request: MessagesRequest, head: ReplyHead, _token_text: TokenText) -> MessagesWriter:
        """A MessagesWriter."""
        return MessagesWriter(request, head, error_body)

    def count_body(self, tokens: int) -> Json:
        """As Anthropic answers."""
        return {"input_tokens": tokens}

    def error_body(self, error: RequestRefused) -> Json:
        """See error_body."""
        return error_body(error)


def error_body(error: RequestRefused) -> Json:
    """An error as Anthropic sends it; clients know a prompt that is too long by its text."""
    kind = ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = f"prompt is too long: {error}" if isinstance(error, ContextOverflow) else str(error)
    return {"type": "error", "error": {"type": kind, "message": message}}
