"""Anthropic messages on the way in: blocks of content to messages of the normal form, tools to schemas."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import Field

from ...conversation import Json, Message, ToolCall
from ...errors import InvalidRequest
from ..base import CallRequest
from ..content import function_schema, join_parts, left_out, normal_form, refused_part, tool_call, unseal_thinking
from ..sampling import ToolChoice, force, format_constraint
from ..wire import Each, Wire, check, read_object

RAW_INPUT = "_unparsed"
"""The only field of a tool's input whose arguments are not a JSON object, so that they come back as they were."""


class _Message(Wire):
    role: Literal["user", "assistant", "system"]
    content: str | Each[Any]


class _Thinking(Wire):
    type: str | None = None
    display: str | None = None


class _OutputConfig(Wire):
    format: Json | None = None


class MessagesRequest(Wire):
    """The body of a messages request, as far as the proxy reads it."""

    messages: Each[_Message] = Field(min_length=1)
    system: str | Each[Any] | None = None
    max_tokens: int | None = Field(None, gt=0)
    stream: bool | None = False
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    stop_sequences: Any = None
    tools: Each[Json] | None = None
    tool_choice: Json | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: Json | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the client asked for thinking blocks."""
        return self.thinking is not None and self.thinking.type not in (None, "disabled")

    @property
    def seals_thinking(self) -> bool:
        """Whether its thinking blocks are to be carried, not read: without text, and sealed in the signature."""
        return self.thinking is not None and self.thinking.display == "omitted"

    @property
    def shown_calls(self) -> int | None:
        """How many of a reply's calls are shown; None means all."""
        return 1 if (self.tool_choice or {}).get("disable_parallel_tool_use") is True else None


def parse_body(body: bytes) -> MessagesRequest:
    """The request, or InvalidRequest that names the first field at fault."""
    request = check(MessagesRequest, read_object(body))
    if request.messages[-1].role == "assistant":
        raise InvalidRequest("messages: a prefilled turn is not supported: end with a user message", "messages")
    return request


def to_call(request: MessagesRequest) -> CallRequest:
    """What is asked for, free of the dialect."""
    tools, other = _tools(request.tools or ())
    choice = _tool_choice(request.tool_choice or {}, [tool["function"]["name"] for tool in tools])
    output = request.output_config.format if request.output_config is not None else request.output_format
    sampling = {name: getattr(request, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    sampling["stop"] = request.stop_sequences or None
    skipped: list[str] = []
    messages = normal_form(_messages(request, skipped))
    asked = {name: value for name, value in sampling.items() if value is not None}
    return CallRequest(
        messages=messages,
        tools=tools,
        may_call_tools=choice.may_call,
        max_tokens=request.max_tokens,
        asked=asked | left_out(other) | {f"content.{kind[:40]}": "left out" for kind in skipped},
        constraint=None if choice.forced else format_constraint(output, "output_config.format"),
        forced_tools=choice.forced,
        parallel_calls=request.shown_calls is None,
    )


def _messages(request: MessagesRequest, skipped: list[str]) -> Iterator[Message]:
    if request.system:
        yield Message("system", join_parts("system", request.system))
    for number, message in enumerate(request.messages):
        place = f"messages.{number}.content"
        if isinstance(message.content, str) or message.role == "system":
            yield Message(message.role, join_parts(place, message.content))
            continue
        blocks = [_block(place, block) for block in message.content]
        if message.role == "assistant":
            yield _assistant(place, blocks, skipped)
        else:
            yield from _user(place, blocks)


def _block(place: str, block: object) -> Json:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise InvalidRequest(f"{place}: a block is an object with a type: send one", place)
    return block


def _assistant(place: str, blocks: Iterable[Json], skipped: list[str]) -> Message:
    text, thinking = "", ""
    calls: list[ToolCall] = []
    for block in blocks:
        match block["type"]:
            case "text":
                text += join_parts(place, [block])
            case "thinking":
                shown = block.get("thinking")
                thinking += shown if isinstance(shown, str) and shown else unseal_thinking(block.get("signature"))
            case "tool_use":
                calls.append(_call(place, block))
            case "image":
                raise refused_part(place, "image")
            case kind:
                skipped.append(str(kind))
    return Message("assistant", text, tool_calls=tuple(calls), reasoning=thinking or None)


def _call(place: str, block: Json) -> ToolCall:
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str):
        raise InvalidRequest(f"{place}: a tool_use block needs a name: send the one it came with", place)
    if isinstance(given, dict) and set(given) == {RAW_INPUT} and isinstance(given[RAW_INPUT], str):
        given = given[RAW_INPUT]
    return tool_call(block.get("id"), name, given)


def _user(place: str, blocks: list[Json]) -> Iterator[Message]:
    """A user message with results in it is several messages, in the order of its blocks."""
    texts: list[str] = []
    results = 0
    for block in blocks:
        if block["type"] != "tool_result":
            texts.append(_text(place, block))
            continue
        if texts:
            yield Message("user", "\n".join(texts))
            texts = []
        results += 1
        call_id = block.get("tool_use_id")
        yield Message("tool", _result(place, block), tool_call_id=call_id if isinstance(call_id, str) else None)
    if texts or not results:
        yield Message("user", "\n".join(texts))


def _result(place: str, block: Json) -> str:
    content = block.get("content")
    if isinstance(content, list):
        return "\n".join(_text(place, _block(place, part)) for part in content)
    return join_parts(place, content)


def _text(place: str, block: Json) -> str:
    match block:
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return text
        case {"type": "document", "source": {"type": "content", "content": content}} | {
            "type": "search_result",
            "content": content,
        }:
            return join_parts(place, content)
        case {"type": "tool_reference", "tool_name": str(name)}:
            return name
        case _:
            return join_parts(place, [block])


def _tools(tools: Iterable[Json]) -> tuple[tuple[Json, ...], list[str]]:
    """Functions as the model is shown them, and the types of tools that only Anthropic's models know."""
    shown, other = [], []
    for number, tool in enumerate(tools):
        if tool.get("type") not in (None, "custom"):
            other.append(str(tool["type"]))
            continue
        place = f"tools.{number}"
        shown.append(function_schema(tool.get("name"), tool.get("description"), tool.get("input_schema"), place))
    return tuple(shown), other


def _tool_choice(choice: Json, names: list[str]) -> ToolChoice:
    match choice.get("type", "auto"):
        case "auto":
            return ToolChoice()
        case "none":
            return ToolChoice(may_call=False)
        case "any":
            return force(names, names)
        case "tool":
            return force([str(choice.get("name"))], names)
    raise InvalidRequest("tool_choice.type: send auto, any, tool or none", "tool_choice")
