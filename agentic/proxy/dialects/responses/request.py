"""The Responses API on the way in: the body that is read, what is refused by name, and the CallRequest."""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from ...conversation import Json, Message
from ...errors import InvalidRequest
from ..base import CallRequest
from ..content import left_out, normal_form
from ..sampling import SamplingFields, format_constraint, openai_tool_choice
from ..wire import Each, Wire, check, read_object
from .items import ItemReader
from .tools import ToolTable, make_table

RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})")


class _Text(Wire):
    format: Json | None = None
    verbosity: Any = None


class Body(SamplingFields):
    """The body of a Responses request, as far as the proxy reads it."""

    input: str | Each[Any] | None = None
    instructions: str | None = None
    tools: Each[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = True
    text: _Text | None = None
    max_output_tokens: int | None = Field(None, gt=0)
    previous_response_id: str | None = None
    store: bool | None = True
    stream: bool | None = False
    include: Each[str] | None = None
    reasoning: Json | None = None
    metadata: Json | None = None
    truncation: str | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    background: bool | None = False
    conversation: Any = None
    prompt: Any = None


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A checked request with the table of its tools, which its reply needs too."""

    body: Body
    tools: ToolTable

    @property
    def shown_calls(self) -> int | None:
        """How many of a reply's calls are shown; None means all."""
        return 1 if self.body.parallel_tool_calls is False else None

    @property
    def seals_thinking(self) -> bool:
        """Whether the client carries the thinking itself."""
        return "reasoning.encrypted_content" in (self.body.include or ())


def parse_body(body: bytes) -> ResponsesRequest:
    """The request, or InvalidRequest that names the first field at fault."""
    request = check(Body, read_object(body))
    include = request.include or ()
    refusals = [
        ("background", bool(request.background), "not supported: wait for the reply, or stream it"),
        ("conversation", request.conversation is not None, "not supported: use previous_response_id"),
        ("prompt", request.prompt is not None, "stored prompts are not supported: send input"),
        ("top_logprobs", bool(request.top_logprobs), "only 0 is supported: the engine gives the sampled token's"),
        ("include", "message.output_text.logprobs" in include, "logprobs are given by chat completions: use these"),
    ]
    for field, refused, reason in refusals:
        if refused:
            raise InvalidRequest(f"{field}: {reason}", field)
    return ResponsesRequest(request, make_table(request.tools or ()))


def to_call(request: ResponsesRequest) -> CallRequest:
    """What is asked for, free of the dialect."""
    body = request.body
    reader = ItemReader()
    messages = reader.read(body.input)
    continues = _continued(body.previous_response_id)
    if not messages and continues is None:
        raise InvalidRequest("input: nothing to answer: send a text or at least one item", "input")
    lead = [Message("system", body.instructions)] if body.instructions else []
    is_stored = body.store is not False
    # Instructions are not carried over by previous_response_id, so where they matter alone they stay alone.
    apart = len(lead) if is_stored or continues is not None else 0
    choice = openai_tool_choice(body.tool_choice, list(request.tools.wire))
    asked = body.asked() | choice.asked | left_out(request.tools.left_out)
    if body.max_output_tokens is not None:
        asked["max_tokens"] = body.max_output_tokens
    text_format = body.text.format if body.text is not None else None
    return CallRequest(
        messages=normal_form([*lead, *messages], apart),
        tools=request.tools.shown,
        may_call_tools=choice.may_call,
        max_tokens=body.max_output_tokens,
        asked=asked | {f"input.{kind}": "left out" for kind in reader.skipped},
        constraint=None if choice.forced else format_constraint(text_format, "text.format"),
        forced_tools=choice.forced,
        parallel_calls=request.shown_calls is None,
        continues=continues,
        lead=apart,
        is_stored=is_stored,
    )


def _continued(response_id: str | None) -> str | None:
    if response_id is None:
        return None
    found = RESPONSE_ID.fullmatch(response_id)
    if found is None:
        raise InvalidRequest(f"Previous response with id {response_id[:80]!r} not found.", "previous_response_id")
    return found.group(1)
