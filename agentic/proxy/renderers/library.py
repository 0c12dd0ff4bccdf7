"""Families that the library `renderers` (PyPI) writes out by hand, such as Qwen3: its rendering, bridging and parsing.

The library's bridge promises to return the held ids unchanged with the new ones after them; that is checked here, and
anything else is a fork. Families are known by their name on Hugging Face. A local folder has no such name, so a folder
named like one (`Qwen3-4B`) counts only if the library renders a probe exactly as the folder's own template does.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..conversation import THINK_END, Json, Message, ToolCall, as_template_dicts
from ..errors import InvalidRequest, RendererError
from .base import HeldTurn, ReplyParser, WholeReplyParser
from .constraints import call_constraint
from .forms import (
    ARGUMENT_TAGS,
    DEEPSEEK,
    DSML,
    GEMMA,
    HERMES,
    HUNYUAN,
    INKLING,
    INVOKE,
    KIMI,
    LLAMA,
    XML,
    ReplyForm,
    ThinkingMarks,
    opens_thinking,
)
from .harmony import MARKERS, HarmonyReader
from .jinja import ChatTemplate
from .messages import MarkedMessagesReader
from .parsers import PlainTextParser, SampledReplyParser, reply_parser, whole_reply
from .tokens import TextTokenizer, TokenizerFiles

TAIL_TOKENS = 4096
"""Of the held prompt, what the library's bridge is shown: it looks for where the sampled turn was opened, and copies
the rest several times."""


OWN_FORMS = {
    **dict.fromkeys(("qwen3", "qwen3-vl"), ReplyForm("may", HERMES)),
    "llama-3": ReplyForm("never", LLAMA),
    **dict.fromkeys(("qwen3.5", "qwen3.6", "qwen3.8", "prime-qwen3"), ReplyForm("may", XML)),
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), ReplyForm("may", XML)),
    **dict.fromkeys(("glm-4.5", "glm-5", "glm-5.1", "glm-5.3"), ReplyForm("may", ARGUMENT_TAGS)),
    **dict.fromkeys(("laguna-xs.2", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1"), ReplyForm("may", ARGUMENT_TAGS)),
    **dict.fromkeys(("kimi-k2", "kimi-k2.5"), ReplyForm("may", KIMI)),
    **dict.fromkeys(("deepseek-v3", "deepseek-r1"), ReplyForm("may", DEEPSEEK)),
    "minimax-m2": ReplyForm("may", INVOKE),
    "deepseek-v4": ReplyForm("may", DSML),
    "hy3": ReplyForm("may", HUNYUAN, ThinkingMarks("<think:opensource>", "</think:opensource>")),
    "gemma4": ReplyForm("may", GEMMA, ThinkingMarks("<|channel>", "<channel|>", "thought\n")),
}
"""Families whose replies our own reader knows."""
MESSAGES = {"inkling": INKLING}
"""Those whose replies are messages; gpt-oss has a reader of its own."""


class LibraryRenderer:
    """The proxy's protocol over one of the library's renderers."""

    def __init__(self, renderer: Any, tokenizer: "LibraryTokenizer", family: str) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._family = family
        self._stops = tuple(int(token) for token in renderer.get_stop_token_ids())
        self._opening = self.render([Message("user", ".")], None)
        self._form = self._find_form()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """What the family stops at."""
        return self._stops

    def render(self, messages: Sequence[Message], tools: Sequence[Json] | None) -> list[int]:
        """Ids of the whole conversation."""
        shown = as_template_dicts(self._tokenizer.masked(messages))
        try:
            return list(self._renderer.render_ids(shown, tools=_tool_specs(tools), add_generation_prompt=True))
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"the model's renderer refuses these messages: {error}", "messages") from error

    def bridge(self, held: HeldTurn, messages: Sequence[Message], tools: Sequence[Json] | None) -> list[int] | None:
        """Ids after the held ones, or None where the library cannot promise them."""
        prompt, completion = list(held.prompt_ids[-TAIL_TOKENS:]), list(held.completion_ids)
        new = as_template_dicts(self._tokenizer.masked(messages[held.messages :]))
        try:
            bridged = self._renderer.bridge_to_next_turn(prompt, completion, new, tools=_tool_specs(tools))
        except (ValueError, TypeError):
            return None  # rendering anew says what is wrong
        if bridged is None:
            return None
        ids = list(bridged.token_ids)
        count = len(prompt) + len(completion)
        return ids[count:] if ids[:count] == prompt + completion else None

    def parse(self, completion_ids: Sequence[int], tools: Sequence[Json] | None) -> Message:
        """Text, thinking and tool calls."""
        return whole_reply(self.stream_parser(tools), completion_ids)

    def token_text(self, token_id: int) -> str:
        """One token as text."""
        return self._tokenizer.decode(token_id)

    def stream_parser(self, tools: Sequence[Json] | None) -> ReplyParser:
        """Thinking, text and calls as they are sampled, or at the end where the library reads them."""
        tokenizer = self._tokenizer.tokenizer
        if self._form is not None:
            return reply_parser(tokenizer, self._form, tools, self._stops)
        if self._family == "gpt-oss":
            return SampledReplyParser(tokenizer.detokenizer(MARKERS), HarmonyReader(bool(tools)), self._stops)
        if (messages := MESSAGES.get(self._family)) is not None:
            reader = MarkedMessagesReader(messages, bool(tools))
            return SampledReplyParser(tokenizer.detokenizer(messages.markers), reader, self._stops)
        return WholeReplyParser(lambda ids: self._parse_by_library(ids, tools))

    def encode(self, text: str) -> list[int]:
        """Ids of raw text."""
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Plain text."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def text_parser(self) -> ReplyParser:
        """The text as it is sampled."""
        return PlainTextParser(self._tokenizer.tokenizer.detokenizer())

    def tool_constraint(self, tools: Sequence[Json], parallel: bool) -> Json | None:
        """What the form of calls says; None where the library alone knows it."""
        if (messages := MESSAGES.get(self._family)) is not None:
            return call_constraint(messages, tools, parallel)
        form = OWN_FORMS.get(self._family)
        return call_constraint(form.calls, tools, parallel) if form is not None else None

    def _find_form(self) -> ReplyForm | None:
        form = OWN_FORMS.get(self._family)
        if form is None or form.thinking == "never":
            return form
        is_open = opens_thinking(self._tokenizer.decode(self._opening), form.marks)
        return replace(form, thinking="opened" if is_open else "may")

    def _parse_by_library(self, completion_ids: Sequence[int], tools: Sequence[Json] | None) -> Message:
        """If any call is malformed, all of the text stays text."""
        specs = _tool_specs(tools)
        parsed = self._renderer.parse_response(list(completion_ids), tools=specs, prompt_ids=self._opening)
        reasoning = parsed.reasoning_content or None
        if parsed.tool_calls and (not tools or any(call.status != "ok" for call in parsed.tool_calls)):
            text = self._tokenizer.decode(list(completion_ids), skip_special_tokens=True)
            return Message("assistant", text.rsplit(THINK_END, 1)[-1], reasoning=reasoning)
        calls = tuple(_tool_call(number, call) for number, call in enumerate(parsed.tool_calls))
        return Message("assistant", parsed.content, tool_calls=calls, reasoning=reasoning)


class LibraryTokenizer:
    """What the library asks of a tokenizer, over the folder's own file and without transformers."""

    def __init__(self, name_or_path: str, tokenizer: TextTokenizer, files: TokenizerFiles) -> None:
        self.name_or_path = name_or_path
        self.unk_token_id = tokenizer.token_id(files.special_tokens.get("unk_token", ""))
        self.eos_token_id = tokenizer.token_id(files.special_tokens.get("eos_token", ""))
        self.tokenizer = tokenizer

    def masked(self, messages: Sequence[Message]) -> list[Message]:
        """Messages in which no special token is one."""
        return [self.tokenizer.masking.message(message) for message in messages]

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of text in which special tokens count as such, if not masked; none are added."""
        return self.tokenizer.encode_template(text)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        """Text of ids."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self.tokenizer.decode(ids, keep_special_tokens=not skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token or those of several; an unknown one gives the unknown token's id."""
        if isinstance(tokens, str):
            found = self.tokenizer.token_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]


def find_library_renderer(name_or_path: str, tokenizer: TextTokenizer, files: TokenizerFiles) -> LibraryRenderer | None:
    """The library's renderer for a model, or None if it has none that is right for this template."""
    from renderers.base import MODEL_RENDERER_MAP

    family = MODEL_RENDERER_MAP.get(name_or_path)
    if family is not None:
        return _build(LibraryTokenizer(name_or_path, tokenizer, files), family)
    tail = Path(name_or_path).name
    likely = next((value for name, value in MODEL_RENDERER_MAP.items() if name.rpartition("/")[2] == tail), None)
    if likely is None:
        return None
    found = _build(LibraryTokenizer(name_or_path, tokenizer, files), likely)
    return found if _agrees(found, files) else None


def _build(tokenizer: LibraryTokenizer, family: str) -> LibraryRenderer:
    import renderers

    try:
        built = renderers.create_renderer(tokenizer, renderers.config_from_name(family))
    except (AssertionError, ValueError) as error:
        raise RendererError(f"{tokenizer.name_or_path} lacks what the family {family} needs: {error}") from error
    return LibraryRenderer(built, tokenizer, family)


def _agrees(renderer: LibraryRenderer, files: TokenizerFiles) -> bool:
    probe = [
        Message("system", "Be brief."),
        Message("user", "One?"),
        Message("assistant", "1"),
        Message("user", "Two?"),
    ]
    text = ChatTemplate(files.chat_template, files.special_tokens).text(as_template_dicts(probe), None, generate=True)
    return "".join(renderer.token_text(token) for token in renderer.render(probe, None)) == text


def _tool_call(number: int, call: Any) -> ToolCall:
    arguments = call.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(call.id or f"call_{number}", call.name, text)


def _tool_specs(tools: Sequence[Json] | None) -> list[Json] | None:
    return list(tools) if tools else None
