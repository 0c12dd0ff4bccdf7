"""Input items of the Responses API to messages of the normal form.

The API has one item for each piece of an assistant turn (reasoning, text, calls); here they are put together again. A
call whose id says that it belongs to the last turn joins it also when the client has moved results in between. Items
that only OpenAI's own tools leave behind are skipped and counted.
"""

import re
from dataclasses import replace
from typing import Any

from ...conversation import Json, Message, ToolCall
from ...errors import InvalidRequest
from ..base import REFERENCE
from ..content import join_parts, tool_call, unseal_thinking
from ..wire import write_json
from .tools import custom_arguments, shown_name

ITEM_ID = re.compile(r"(msg|rs|fc|ctc)_([0-9a-f]{32})(_\d+)?")
CALL_ID = re.compile(r"call_([0-9a-f]{24})\d+")


class ItemReader:
    """Reads a request's items in order."""

    def __init__(self) -> None:
        self.skipped: list[str] = []
        """Types of items that say nothing to the model."""
        self._messages: list[Message] = []
        self._reasoning = ""

    def read(self, items: str | list[Any] | None) -> list[Message]:
        """The messages of `input`."""
        if isinstance(items, str):
            return [Message("user", items)]
        for number, item in enumerate(items or ()):
            if not isinstance(item, dict):
                raise InvalidRequest(f"input.{number}: an item is an object: send one", "input")
            self._read(f"input.{number}", item)
        self._end_reasoning()
        return self._messages

    def _read(self, place: str, item: Json) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        match kind:
            case "message":
                self._message(place, item)
            case "reasoning":
                self._end_reasoning()
                self._reasoning = _thinking(place, item)
            case "function_call" | "custom_tool_call":
                self._call(place, item, is_custom=kind == "custom_tool_call")
            case "function_call_output" | "custom_tool_call_output":
                self._end_reasoning()
                call_id = item.get("call_id")
                text = _output(f"{place}.output", item.get("output"))
                self._messages.append(Message("tool", text, tool_call_id=call_id if isinstance(call_id, str) else None))
            case "item_reference":
                self._reference(place, item)
            case None:
                raise InvalidRequest(f"{place}: type is missing: send the item as it came", "input")
            case _:
                self.skipped.append(str(kind)[:40])

    def _message(self, place: str, item: Json) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise InvalidRequest(f"{place}.role: send user, assistant, system or developer", "input")
        separator = "" if role == "assistant" else "\n"
        text = join_parts(f"{place}.content", item.get("content"), separator)
        if role != "assistant":
            self._end_reasoning()
            self._messages.append(Message(role, text))
            return
        last = self._last()
        if last is not None and last.role == REFERENCE:
            return
        if last is not None and last.tool_calls and not self._reasoning:
            self._messages[-1] = replace(last, content=last.content + text)
            return
        self._messages.append(Message("assistant", text, reasoning=self._take_reasoning()))

    def _call(self, place: str, item: Json, is_custom: bool) -> None:
        name, call_id = item.get("name"), item.get("call_id")
        if not isinstance(name, str):
            raise InvalidRequest(f"{place}.name: name the tool that was called", "input")
        given = item.get("input") if is_custom else item.get("arguments")
        arguments = custom_arguments(str(given or "")) if is_custom else given
        call = tool_call(call_id, shown_name(name, item.get("namespace")), arguments)
        position = self._turn_of(call)
        if position is None:
            self._messages.append(Message("assistant", tool_calls=(call,), reasoning=self._take_reasoning()))
        elif self._messages[position].role != REFERENCE:
            turn = self._messages[position]
            self._messages[position] = replace(turn, tool_calls=(*turn.tool_calls, call))

    def _turn_of(self, call: ToolCall) -> int | None:
        """The place of the turn that a call belongs to, or None if it begins one."""
        if self._reasoning or not self._messages:
            return None
        last = len(self._messages) - 1
        if self._messages[last].role in ("assistant", REFERENCE):
            return last
        while last >= 0 and self._messages[last].role == "tool":
            last -= 1
        own = CALL_ID.fullmatch(call.id)
        stems = {made.group(1) for c in self._messages[last].tool_calls if (made := CALL_ID.fullmatch(c.id))}
        return last if last >= 0 and own is not None and own.group(1) in stems else None

    def _reference(self, place: str, item: Json) -> None:
        found = ITEM_ID.fullmatch(str(item.get("id")))
        if found is None:
            raise InvalidRequest(f"Item with id {str(item.get('id'))[:80]!r} not found.", f"{place}.id")
        if found.group(1) == "rs":
            return  # a turn is recognised without its thinking
        wanted = Message(REFERENCE, found.group(2))
        if self._last() != wanted:
            self._messages.append(wanted)

    def _last(self) -> Message | None:
        last = self._messages[-1] if self._messages else None
        return last if last is not None and last.role in ("assistant", REFERENCE) else None

    def _take_reasoning(self) -> str | None:
        text, self._reasoning = self._reasoning, ""
        return text or None

    def _end_reasoning(self) -> None:
        """Thinking without a turn after it is a turn of its own, cut off."""
        if self._reasoning:
            self._messages.append(Message("assistant", reasoning=self._take_reasoning()))


def _thinking(place: str, item: Json) -> str:
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return join_parts(f"{place}.{name}", parts)
    return unseal_thinking(item.get("encrypted_content"))


def _output(place: str, output: object) -> str:
    return write_json(output) if isinstance(output, dict) else join_parts(place, output)
