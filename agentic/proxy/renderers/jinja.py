"""A chat template as text: the same Jinja environment that transformers gives templates, sandboxed.

It only turns messages into text. A template that raises for a conversation refuses it: InvalidRequest.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..conversation import Json
from ..errors import InvalidRequest, RendererError
from .locality import is_local


class GenerationBlock(Extension):
    """`{% generation %}` marks assistant text for trainers; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares the attribute as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the block by what it encloses."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """A compiled template with the special tokens as variables."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
            self.is_local = is_local(environment.parse(source))
            """Whether a message's text depends on its neighbours alone; see `locality`."""
        except TemplateError as error:
            raise RendererError(f"the chat template does not compile: {error}") from error
        # Merged once: Jinja's own `render` merges its globals with the variables anew each time, at the cost of most of
        # a short rendering.
        self._variables = {**self._template.globals, **special_tokens}

    def text(self, messages: Sequence[Json], tools: Sequence[Json] | None, generate: bool) -> str:
        """The conversation as text; `generate` opens the next assistant turn."""
        try:
            variables = {"messages": messages, "tools": tools or None, "add_generation_prompt": generate}
            context = self._template.new_context({**self._variables, **variables}, shared=True)
            return "".join(self._template.root_render_func(context))
        except (TemplateError, TypeError, KeyError) as error:
            raise InvalidRequest(f"the model's chat template refuses these messages: {error}", "messages") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no model has seen in its schemas.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # local time, as transformers does
