"""Keeps special tokens in message text apart from those that a template writes: the former are text, never control.

Before a template (or the library) sees messages, each special token's text in them is put as a reference in Unicode
noncharacters, which nothing else can contain. A text with references is encoded around the template's own special
tokens, and what lies between them as plain text with the references resolved. So output of a sandbox that holds
`<|im_end|>` cannot end a turn, wherever a template puts it, and also where the template trims or rewrites it.

What counts is what the tokenizer declares as special. Qwen's `<think>` and `<tool_call>`, say, are not: they are
encoded as the tokens that they are everywhere.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..conversation import Json, Message, ToolCall
from ..errors import InvalidRequest

NONCHARACTERS = re.compile("[\ufdd0-\ufdd3]")
"""Reserved for a program's own use; two are used here, two by the template renderer."""
START, STOP = "\ufdd2", "\ufdd3"

_REFERENCE = re.compile(f"{START}([0-9]+){STOP}")


class Masking:
    """References to the special tokens of one tokenizer."""

    def __init__(self, special_tokens: Mapping[int, str]) -> None:
        self._texts = {token_id: text for token_id, text in special_tokens.items() if text}
        self._ids = {text: token_id for token_id, text in self._texts.items()}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._parts = re.compile(f"({self._pattern.pattern})")

    def message(self, message: Message) -> Message:
        """The message with references."""
        texts = (message.role, message.content, message.tool_call_id, message.name, message.reasoning)
        if not message.tool_calls and not any(text and self._is_touched(text) for text in texts):
            return message
        calls = tuple(ToolCall(call.id, self.text(call.name), self.text(call.arguments)) for call in message.tool_calls)
        return replace(
            message,
            role=self.text(message.role),
            content=self.text(message.content),
            tool_calls=calls,
            tool_call_id=self._optional(message.tool_call_id),
            name=self._optional(message.name),
            reasoning=self._optional(message.reasoning),
        )

    def json(self, value: Any) -> Any:
        """A JSON value with references in all of its texts."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(key): self.json(item) for key, item in value.items()}
            case list():
                return [self.json(item) for item in value]
        return value

    def tools(self, tools: list[Json] | None) -> list[Json] | None:
        """Tool schemas with references."""
        return None if tools is None else [self.json(tool) for tool in tools]

    def text(self, text: str) -> str:
        """The text with references; refuses those noncharacters that would be taken for some."""
        if not text.isascii() and (found := NONCHARACTERS.search(text)):
            raise InvalidRequest(f"a message holds the noncharacter U+{ord(found.group()):04X}", "messages")
        return self._pattern.sub(lambda found: f"{START}{self._ids[found.group()]}{STOP}", text)

    def _is_touched(self, text: str) -> bool:
        return not text.isascii() or self._pattern.search(text) is not None

    def resolved(self, text: str) -> str:
        """The text as it was."""
        return _REFERENCE.sub(lambda found: self._texts[int(found.group(1))], text) if START in text else text

    def parts(self, text: str) -> list[tuple[str, int | None]]:
        """The text around its true special tokens: each part with its id, or None for plain text, resolved."""
        parts = [part for part in self._parts.split(text) if part]
        return [(self.resolved(part), self._ids.get(part)) for part in parts]

    def _optional(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)
