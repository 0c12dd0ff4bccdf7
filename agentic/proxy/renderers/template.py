"""A renderer for any Hugging Face tokenizer with a chat template: encodes only what is new, piece by piece.

How pieces are found. The template is rendered twice: with the real messages, and with each message text replaced by a
marker that cannot occur in text. Splitting the second rendering at the markers gives the template's own text between
the message texts. If filling the message texts back in gives the first rendering, the pieces are the truth, and each
is encoded on its own; otherwise (a template that trims or rewrites text) the first rendering is encoded as one piece.

How appending is proved. For a bridge, the conversation is rendered up to the prompt of the sampled turn, up to the
end of that turn, and whole. Each must begin with the one before; then the new text is the rest, after the text that
closes the sampled turn. If the turn ended by itself, its end token is held already and is not repeated; if
`max_tokens` cut it, the closing text follows, encoded. If a rendering is not a beginning of the next (a template that
drops earlier thinking, say) the answer is None: fork. A template in which a message's text depends on its neighbours
alone is shown to append by the first message and the last few, so the cost follows what is new (`locality`).

Sampled ids are never decoded and encoded again here (invariant 4).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..conversation import Json, Message, as_template_dicts
from ..errors import RendererError
from .base import HeldTurn, ReplyParser
from .constraints import call_constraint
from .forms import form_of
from .jinja import ChatTemplate
from .locality import window
from .parsers import PlainTextParser, reply_parser, whole_reply
from .tokens import TextTokenizer, TokenizerFiles

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Noncharacters that enclose a marker; Unicode reserves them for a program's own use."""


class TemplateRenderer:
    """Renders by the tokenizer's own chat template, and reads replies in the form that the template shows."""

    def __init__(self, tokenizer: TextTokenizer, files: TokenizerFiles) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(files.chat_template, files.special_tokens)
        self._closing = self._find_closing()
        self._end_token, self._end_id = self._find_end(files.special_tokens.get("eos_token"))
        declared = tokenizer.token_id(files.special_tokens.get("eos_token", ""))
        self._stops = tuple(dict.fromkeys(i for i in (self._end_id, declared) if i is not None))
        self._form = form_of(files.chat_template, self._find_generation_prompt())

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The token that closes a turn in the template, and the tokenizer's end token."""
        return self._stops

    def render(self, messages: Sequence[Message], tools: Sequence[Json] | None) -> list[int]:
        """Ids of the whole conversation, each piece encoded on its own."""
        messages, tools = self._masked(messages, tools)
        marked = self._marked(messages, tools, generate=True)
        real = self._template.text(as_template_dicts(messages), tools, generate=True)
        return self._encode(_pieces(marked, real, messages))

    def bridge(self, held: HeldTurn, messages: Sequence[Message], tools: Sequence[Json] | None) -> list[int] | None:
        """Ids after the held ones, or None where the template does not merely append."""
        messages, count = window(messages, held.messages) if self._template.is_local else (messages, held.messages)
        messages, tools = self._masked(messages, tools)
        before, through = messages[: count - 1], messages[:count]
        marked_held = self._marked(through, tools, generate=False)
        marked = self._marked(messages, tools, generate=True)
        appends = marked_held.startswith(self._marked(before, tools, generate=True)) and marked.startswith(marked_held)
        if not appends or not marked_held.endswith(self._closing):
            return None
        real_held = self._template.text(as_template_dicts(through), tools, generate=False)
        real = self._template.text(as_template_dicts(messages), tools, generate=True)
        if not real.startswith(real_held):
            return None
        pieces = _pieces(marked[len(marked_held) :], real[len(real_held) :], messages)
        return self._encode([(self._rest_of_closing(held.completion_ids), False), *pieces])

    def parse(self, completion_ids: Sequence[int], tools: Sequence[Json] | None) -> Message:
        """Text and tool calls of a sampled turn."""
        return whole_reply(self.stream_parser(tools), completion_ids)

    def token_text(self, token_id: int) -> str:
        """One token as text."""
        return self._tokenizer.token_text(token_id)

    def stream_parser(self, tools: Sequence[Json] | None) -> ReplyParser:
        """Thinking, text and calls as they are sampled."""
        return reply_parser(self._tokenizer, self._form, tools, self._stops)

    def encode(self, text: str) -> list[int]:
        """Ids of raw text."""
        return self._tokenizer.encode_template(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Plain text."""
        return self._tokenizer.decode(ids)

    def text_parser(self) -> ReplyParser:
        """The text as it is sampled."""
        return PlainTextParser(self._tokenizer.detokenizer())

    def tool_constraint(self, tools: Sequence[Json], parallel: bool) -> Json | None:
        """A structural tag, or a JSON schema where calls are bare objects."""
        return call_constraint(self._form.calls, tools, parallel)

    def _masked(
        self, messages: Sequence[Message], tools: Sequence[Json] | None
    ) -> tuple[list[Message], list[Json] | None]:
        masking = self._tokenizer.masking
        return [masking.message(message) for message in messages], masking.tools(list(tools) if tools else None)

    def _marked(self, messages: Sequence[Message], tools: Sequence[Json] | None, generate: bool) -> str:
        marked = [replace(m, content=_marker(n)) if m.content else m for n, m in enumerate(messages)]
        return self._template.text(as_template_dicts(marked), tools, generate)

    def _encode(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        ids: list[int] = []
        literal = ""
        for text, is_content in pieces:
            if not is_content:
                literal += text
                continue
            ids += self._tokenizer.encode_template(literal)
            ids += self._tokenizer.encode_content(text)
            literal = ""
        return ids + self._tokenizer.encode_template(literal)

    def _rest_of_closing(self, completion_ids: Sequence[int]) -> str:
        ended = bool(completion_ids) and completion_ids[-1] == self._end_id
        return self._closing.split(self._end_token, 1)[1] if ended else self._closing

    def _find_closing(self) -> str:
        turns = [Message("user", "."), Message("assistant", ".")]
        _, found, closing = self._marked(turns, None, generate=False).partition(_marker(1))
        if not found:
            raise RendererError("the chat template leaves out the text of an assistant turn: is it a chat model's?")
        return closing

    def _find_generation_prompt(self) -> str:
        question = [Message("user", ".")]
        return self._marked(question, None, generate=True).rpartition(CLOSE)[2]

    def _find_end(self, declared: str | None) -> tuple[str, int]:
        """The special token that closes a turn: the tokenizer's end token if the template uses it, else the first
        one."""
        if declared and declared in self._closing:
            end = self._tokenizer.token_id(declared)
            if end is not None:
                return declared, end
        for token_id in self._tokenizer.encode_template(self._closing):
            text = self._tokenizer.token_text(token_id)
            if text and not self._tokenizer.decode([token_id]):
                return text, token_id
        raise RendererError(f"the chat template closes a turn with {self._closing!r}, which holds no special token")


def _marker(number: int) -> str:
    return f"{OPEN}{number}{CLOSE}"


def _pieces(marked: str, real: str, messages: Sequence[Message]) -> list[tuple[str, bool]]:
    """Pieces of text, each with whether it is message text; all in one if the template rewrites message text."""
    pieces = list(_split(marked, messages))
    return pieces if "".join(text for text, _ in pieces) == real else [(real, False)]


def _split(marked: str, messages: Sequence[Message]) -> Iterator[tuple[str, bool]]:
    literal, *rest = marked.split(OPEN)
    yield literal, False
    for part in rest:
        number, _, literal = part.partition(CLOSE)
        yield messages[int(number)].content, True
        yield literal, False
