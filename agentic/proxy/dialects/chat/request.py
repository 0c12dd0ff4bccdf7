"""Chat completions on the way in: the body that is read, what is refused by name, and the CallRequest."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from ...conversation import Json, Message
from ...errors import InvalidRequest
from ..base import CallRequest
from ..content import function_schema, join_parts, left_out, normal_form, tool_call
from ..sampling import SamplingFields, ToolChoice, format_constraint, openai_tool_choice, structured_constraint
from ..wire import Each, Wire, check, read_object


class _Function(Wire):
    name: str
    arguments: str | Json | None = None


class _ToolCall(Wire):
    id: str | None = None
    function: _Function


class _Message(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = None
    tool_calls: Each[_ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None


class StreamOptions(Wire):
    """What else a stream shows."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class ChatRequest(SamplingFields):
    """The body of a chat completion request, as far as the proxy reads it."""

    messages: Each[_Message] = Field(min_length=1)
    tools: Each[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = True
    max_tokens: int | None = Field(None, gt=0)
    max_completion_tokens: int | None = Field(None, gt=0)
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = False
    response_format: Json | None = None
    structured_outputs: Json | None = None
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    chat_template: str | None = None
    echo: bool | None = False

    @property
    def shown_calls(self) -> int | None:
        """How many of a reply's calls are shown; None means all."""
        return 1 if self.parallel_tool_calls is False else None


def parse_body(body: bytes) -> ChatRequest:
    """The request, or InvalidRequest that names the first field at fault."""
    request = check(ChatRequest, read_object(body))
    refusals = [
        ("n", request.n not in (None, 1), "only n=1 is supported: send one request for each sample"),
        ("top_logprobs", bool(request.top_logprobs), "only 0 is supported: the engine gives the sampled token's"),
        ("prompt_logprobs", request.prompt_logprobs is not None, "not supported: leave it out"),
        ("continue_final_message", bool(request.continue_final_message), "not supported: end with a user message"),
        ("add_generation_prompt", request.add_generation_prompt is False, "false is not supported: leave it out"),
        ("chat_template", request.chat_template is not None, "the model's own is used: leave it out"),
        ("echo", bool(request.echo), "not supported: leave it out"),
    ]
    for field, refused, reason in refusals:
        if refused:
            raise InvalidRequest(f"{field}: {reason}", field)
    return request


def to_call(request: ChatRequest) -> CallRequest:
    """What is asked for, free of the dialect."""
    caps = [cap for cap in (request.max_completion_tokens, request.max_tokens) if cap is not None]
    tools, other = _tools(request.tools or ())
    choice = _tool_choice(request, tools)
    constraint = format_constraint(request.response_format, "response_format")
    constraint = constraint or structured_constraint(request.structured_outputs)
    return CallRequest(
        messages=normal_form(_to_message(number, message) for number, message in enumerate(request.messages)),
        tools=tools,
        may_call_tools=choice.may_call,
        max_tokens=min(caps) if caps else None,
        asked=request.asked() | ({"max_tokens": min(caps)} if caps else {}) | left_out(other) | choice.asked,
        constraint=None if choice.forced else constraint,
        forced_tools=choice.forced,
        parallel_calls=request.parallel_tool_calls is not False,
    )


def _tool_choice(request: ChatRequest, tools: Sequence[Json]) -> ToolChoice:
    return openai_tool_choice(request.tool_choice, [tool["function"]["name"] for tool in tools])


def _tools(tools: Sequence[Json]) -> tuple[tuple[Json, ...], list[str]]:
    """Functions as the model is shown them, and the types of what else there is."""
    shown, other = [], []
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if isinstance(function, dict):
            name, description, parameters = (function.get(key) for key in ("name", "description", "parameters"))
            shown.append(function_schema(name, description, parameters, f"tools.{number}.function"))
        elif tool.get("type") in (None, "function"):
            raise InvalidRequest(f"tools.{number}: function is missing: send its name and parameters", "tools")
        else:
            other.append(str(tool["type"]))
    return tuple(shown), other


def _to_message(number: int, message: _Message) -> Message:
    thinking = (message.reasoning, message.reasoning_content)
    return Message(
        role="tool" if message.role == "function" else message.role,
        content=join_parts(f"messages.{number}.content", message.content),
        tool_calls=tuple(
            tool_call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=next((text for text in thinking if isinstance(text, str) and text), None),
    )
