"""OpenAI Responses: `/v1/responses`.

`previous_response_id` goes on from a reply of the same session that was stored; items may be given back whole, without
their ids, or as references. Freeform tools are shown to the model as functions, tools that OpenAI runs are left out and
counted. Reasoning is shown as it is, and sealed for clients that carry it; how many of the tokens are reasoning is not
told apart, so that number is 0. Refused by name: background work, conversations, stored prompts, images, logprobs.
"""

from ...conversation import Json
from ...errors import RequestRefused
from .. import openai
from ..base import CallReply, CallRequest, ReplyHead, TokenText
from .reply import reply_body
from .request import ResponsesRequest, parse_body, to_call
from .stream import ResponsesWriter

__all__ = ["ResponsesDialect", "ResponsesRequest", "ResponsesWriter", "parse_body", "reply_body", "to_call"]


class ResponsesDialect:
    """The dialect of `/v1/responses`."""

    name = "responses"
    path = "/responses"
    count_path: str | None = "/responses/input_tokens"

    def parse(self, body: bytes) -> ResponsesRequest:
        """See parse_body."""
        return parse_body(body)

    def to_call(self, request: ResponsesRequest) -> CallRequest:
        """See to_call."""
        return to_call(request)

    def is_streamed(self, request: ResponsesRequest) -> bool:
        """`stream`."""
        return bool(request.body.stream)

    def reply_body(self, request: ResponsesRequest, reply: CallReply, _token_text: TokenText) -> Json:
        """See reply_body."""
        return reply_body(request, reply)

    def writer(self, request: ResponsesRequest, head: ReplyHead, _token_text: TokenText) -> ResponsesWriter:
        """A ResponsesWriter."""
        return ResponsesWriter(request, head)

    def count_body(self, tokens: int) -> Json:
        """As OpenAI answers."""
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def error_body(self, error: RequestRefused) -> Json:
        """As OpenAI sends it."""
        body = openai.error_body(error)
        if error.param == "previous_response_id":
            body["error"]["code"] = "previous_response_not_found"
        return body
