"""Chat messages in one normal form, and the keys by which a conversation is recognised again.

A key names a whole conversation so far: tool schemas plus messages, chained, so one pass over a request gives the key
of each of its prefixes. The key of an assistant turn leaves out what clients are known to change when they send it
back: stripped thinking, white space around the text, order and spacing of JSON arguments, ids of tool calls. So a
changed copy still finds the tokens that were sampled (invariant 4). All other messages count verbatim: an edit there
is another conversation. Pure.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

type Json = dict[str, Any]

THINK_END = "</think>"
TEXT_KEY = "text:"
VARIANTS = 4
"""Forms of one assistant turn that are known: as sampled, as a client sends it back, as another one does."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool: `arguments` is the JSON text as the model or the client wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; parts of text are joined, absent text is empty."""

    role: str
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the reply's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reply's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; `index` counts the reply's calls from 0. Its id is made by the dialect."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of a call that has begun."""

    index: int
    text: str


type ReplyDelta = TextDelta | ReasoningDelta | CallStart | CallArguments
"""A piece of an assistant turn while it is sampled."""


def message_deltas(message: Message) -> list[ReplyDelta]:
    """A whole assistant turn as deltas: thinking, text, calls."""
    deltas: list[ReplyDelta] = []
    if message.reasoning:
        deltas.append(ReasoningDelta(message.reasoning))
    if message.content:
        deltas.append(TextDelta(message.content))
    for index, call in enumerate(message.tool_calls):
        deltas += [CallStart(index, call.name), CallArguments(index, call.arguments)]
    return deltas


def join_deltas(deltas: Iterable[ReplyDelta]) -> Message:
    """The assistant turn that deltas put together; ids of calls are empty."""
    text = reasoning = ""
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        match delta:
            case TextDelta():
                text += delta.text
            case ReasoningDelta():
                reasoning += delta.text
            case CallStart():
                calls.append((delta.name, ""))
            case CallArguments():
                name, arguments = calls[delta.index]
                calls[delta.index] = (name, arguments + delta.text)
    made = tuple(ToolCall("", name, arguments) for name, arguments in calls)
    return Message("assistant", text, tool_calls=made, reasoning=reasoning or None)


def conversation_keys(messages: Sequence[Message], tools: Sequence[Json] | None) -> list[str]:
    """The key of each non-empty prefix of `messages`, in order."""
    keys = []
    key = opening_key(tools)
    for message in messages:
        key = extend_key(key, message)
        keys.append(key)
    return keys


def opening_key(tools: Sequence[Json] | None) -> str:
    """The key of the empty conversation."""
    return _digest("", json.dumps(tools or [], sort_keys=True))


def extend_key(key: str, message: Message) -> str:
    """The key of the conversation `key` continued by `message`."""
    return _digest(key, json.dumps(_identity(message), ensure_ascii=False))


def text_key(text: str) -> str:
    """The key of a text that a text completion began with or ended at; it says the text's length."""
    return f"{TEXT_KEY}{len(text)}:{_digest('', text)}"


class KnownConversations:
    """Conversations that were asked about before, so that of the next request only what is new is hashed.

    Comparing with the messages of an earlier request costs far less than hashing them. Holds each message once; an
    assistant turn that a client changed in the ways that keys leave out is a variant of the same place.

    Used on the event loop only, and no method waits, so calls never overlap; planning's threads do not come here. In
    which order requests ask and are remembered does not matter: what was asked last is only where the next comparison
    begins. So counting tokens needs no turn among the calls.
    """

    def __init__(self) -> None:
        self._roots: list[tuple[tuple[Json, ...], _Known]] = []
        self._latest: tuple[tuple[Message, ...], list[_Known]] = ((), [])
        """What was last asked about, as far as it was known, and the place before each message and after the last."""

    def keys(self, messages: Sequence[Message], tools: Sequence[Json] | None) -> list[str]:
        """What `conversation_keys` gives."""
        places = self._walk(messages, tools)
        key = places[-1].key if places else opening_key(tools)
        keys = [place.key for place in places[1:]]
        for message in messages[len(keys) :]:
            key = extend_key(key, message)
            keys.append(key)
        return keys

    def remember(self, messages: Sequence[Message], tools: Sequence[Json] | None, keys: Sequence[str]) -> None:
        """Know these messages and their keys from now on."""
        if self._root(tools) is None:
            self._roots.append((tuple(tools or ()), _Known(opening_key(tools))))
        places = self._walk(messages, tools)
        place, known = places[-1], len(places) - 1
        for message, key in zip(messages[known:], keys[known:], strict=True):
            place = place.child(message) or place.add(message, key)

    def _walk(self, messages: Sequence[Message], tools: Sequence[Json] | None) -> "list[_Known]":
        """The places that are known, from the root on."""
        root = self._root(tools)
        if root is None:
            return []
        messages = tuple(messages)
        asked, places = self._latest
        count = len(asked)
        # One comparison of tuples instead of a step for each message: a conversation mostly goes on where it was.
        if not places or places[0] is not root or messages[:count] != asked:
            asked, places, count = (), [root], 0
        places = places[: count + 1]
        for message in messages[count:]:
            place = places[-1].child(message)
            if place is None:
                break
            places.append(place)
        # The messages as they were held before, so that those of the latest request need not be held as well.
        self._latest = (asked + messages[count : len(places) - 1], places)
        return places

    def _root(self, tools: Sequence[Json] | None) -> "_Known | None":
        wanted = tuple(tools or ())
        return next((place for known, place in self._roots if known == wanted), None)


class _Known:
    __slots__ = ("children", "key", "variants")

    def __init__(self, key: str) -> None:
        self.key = key
        self.variants: list[Message] = []
        self.children: list[_Known] = []

    def child(self, message: Message) -> "_Known | None":
        # The latest first: a conversation mostly goes on where it went on last.
        return next((known for known in reversed(self.children) if message in known.variants), None)

    def add(self, message: Message, key: str) -> "_Known":
        known = next((child for child in self.children if child.key == key), None)
        if known is None:
            known = _Known(key)
            self.children.append(known)
        known.variants = [message, *known.variants[: VARIANTS - 1]]
        return known


def verbatim_digest(message: Message) -> str:
    """Tells apart two assistant turns that have the same key but differ in what clients may change."""
    calls = [[call.name, call.arguments] for call in message.tool_calls]
    return _digest("", json.dumps([message.content, message.reasoning, calls], ensure_ascii=False))


def arguments_value(arguments: str) -> Any:
    """The arguments as a JSON object where they are one, else the text itself (templates take either)."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def whole_text(text: str) -> str:
    """The text with U+FFFD for every half of a surrogate pair, which neither UTF-8 nor a tokenizer can take."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _arguments_identity(arguments: str) -> str:
    """Arguments as they compare: whatever the order, the spacing, and how a client's language writes numbers."""
    try:
        value = json.loads(arguments, parse_float=_number, parse_int=_number)
        text = json.dumps(value if isinstance(value, dict) else arguments, sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = json.dumps(arguments, ensure_ascii=False)
    return whole_text(text)


def _number(text: str) -> float | int:
    """JavaScript has one kind of number, writes 1.0 as 1, and rounds long integers."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _identity(message: Message) -> list[object]:
    if message.role != "assistant":
        return [message.role, message.content, message.name]
    calls = [[call.name, _arguments_identity(call.arguments)] for call in message.tool_calls]
    return [message.role, _without_thinking(message.content).strip(), calls]


def _without_thinking(text: str) -> str:
    return text.rsplit(THINK_END, 1)[-1]


def _digest(key: str, text: str) -> str:
    return blake2b(f"{key}\n{text}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def as_template_dicts(messages: Iterable[Message]) -> list[Json]:
    """Messages as chat templates and renderers expect them: OpenAI's form, arguments as objects."""
    return [_as_template_dict(message) for message in messages]


def _as_template_dict(message: Message) -> Json:
    fields: Json = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_value(call.arguments)},
            }
            for call in message.tool_calls
        ]
    optional = {
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "reasoning_content": message.reasoning,
    }
    return fields | {name: value for name, value in optional.items() if value is not None}
