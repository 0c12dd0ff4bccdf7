"""A Hugging Face fast tokenizer as the proxy uses it: template text and message text are encoded differently.

In template text, special tokens are what they say. In message text they are ordinary characters, so output of a sandbox
that contains `<|im_end|>` cannot end a turn. The files are read directly (`tokenizer.json`), without transformers: that
is fast, and it keeps the pre-tokenizer which the file names (transformers replaces it for some model types).
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RendererError
from .detokenizer import ByteDetokenizer, Detokenizer, LibraryDetokenizer, Vocabulary, is_byte_level
from .masking import START, Masking
from .words import make_word_encoder

LITERAL_CHARACTERS, LITERALS = 200, 1024
"""Template text up to so long is encoded once, so many of them; then all are forgotten, since what a conversation
alone has (a tool call is template text) would stay in place of what all have."""
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a tokenizer folder says besides its vocabulary."""

    chat_template: str
    special_tokens: dict[str, str]
    """Variables of the template: `eos_token` and its like, as text."""


class TextTokenizer:
    """Encodes and decodes text piece by piece; never adds special tokens by itself."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        # Two, since the mode is the object's and plans are made in threads.
        self._as_text = type(backend).from_str(backend.to_str())
        self._as_text.encode_special_tokens = True
        self._words = make_word_encoder(self._as_text, self._encode_text)
        self._literals: dict[str, list[int]] = {}
        self._vocabulary = Vocabulary(backend) if is_byte_level(backend) else None
        added = backend.get_added_tokens_decoder()
        self._special = {token_id: token.content for token_id, token in added.items() if token.special}
        self.masking = Masking(self._special)
        pieces = self.encode_content("ab") + self.encode_content("cd e")
        if self.decode(pieces, keep_special_tokens=True) != "abcd e":
            raise RendererError(
                "this tokenizer changes text at the edges of a piece (a prefix space?), so turns cannot be encoded "
                "one by one: use a model family that the library `renderers` supports"
            )

    def encode_template(self, text: str) -> list[int]:
        """Ids of template text, in which special tokens are such; those that are masked are text."""
        if START not in text:
            return self._encode_literal(text)
        ids: list[int] = []
        for part, token_id in self.masking.parts(text):
            ids += self._encode_text(part) if token_id is None else [token_id]
        return ids

    def encode_content(self, text: str) -> list[int]:
        """Ids of message text, masked or not."""
        plain = self.masking.resolved(text)
        return self._encode_text(plain) if self._words is None else self._words.encode(plain)

    def decode(self, ids: Sequence[int], keep_special_tokens: bool = False) -> str:
        """Text, without special tokens unless they are to be kept."""
        detokenizer = self._detokenizer(frozenset() if keep_special_tokens else self._special.keys())
        return detokenizer.feed(ids) + detokenizer.finish()

    def detokenizer(self, shown: Collection[str] = ()) -> Detokenizer:
        """Text of ids that arrive one by one, without special tokens but those named."""
        return self._detokenizer({token_id for token_id, text in self._special.items() if text not in shown})

    def _detokenizer(self, hidden: Collection[int]) -> Detokenizer:
        if self._vocabulary is not None:
            return ByteDetokenizer(self._vocabulary, hidden)
        return LibraryDetokenizer(self._backend, hidden)

    def token_text(self, token_id: int) -> str:
        """One token as text, special ones included."""
        return self.decode([token_id], keep_special_tokens=True)

    def token_id(self, token: str) -> int | None:
        """The id of a whole token, or None if there is no such token."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def _encode_literal(self, text: str) -> list[int]:
        known = self._literals.get(text)
        if known is None:
            known = _encode(self._backend, text)
            if len(text) <= LITERAL_CHARACTERS:
                if len(self._literals) >= LITERALS:
                    self._literals = {}
                self._literals[text] = known
        return known.copy()

    def _encode_text(self, text: str) -> list[int]:
        return _encode(self._as_text, text)


def load_folder(folder: Path) -> tuple[TextTokenizer, TokenizerFiles]:
    """Tokenizer and template of a Hugging Face model folder."""
    from tokenizers import Tokenizer

    vocabulary = folder / "tokenizer.json"
    if not vocabulary.is_file():
        raise RendererError(f"{folder} has no tokenizer.json: point to a Hugging Face folder with a fast tokenizer")
    config_file = folder / "tokenizer_config.json"
    config = json.loads(config_file.read_text("utf-8")) if config_file.is_file() else {}
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text("utf-8") if template_file.is_file() else _default_template(config)
    if not template:
        raise RendererError(f"{folder} has no chat template: add chat_template.jinja, or use an instruct model")
    tokens = {name: _token_text(config[name]) for name in SPECIAL_TOKEN_NAMES if config.get(name)}
    return TextTokenizer(Tokenizer.from_file(str(vocabulary))), TokenizerFiles(template, tokens)


def from_tokenizer(tokenizer: Any) -> tuple[TextTokenizer, TokenizerFiles]:
    """The same from a tokenizer object of transformers (fast ones only)."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise RendererError(f"{type(tokenizer).__name__} is not a fast tokenizer: load it with use_fast=True")
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if not template:
        raise RendererError("the tokenizer has no chat template: set tokenizer.chat_template")
    tokens = {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    return TextTokenizer(backend), TokenizerFiles(template, tokens)


def _encode(backend: Any, text: str) -> list[int]:
    if not text:
        return []
    # A batch of one: the library's only form that leaves out the offsets of tokens, a tenth of the time.
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _default_template(config: dict[str, Any]) -> str | None:
    template = config.get("chat_template")
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _token_text(value: Any) -> str:
    return str(value["content"]) if isinstance(value, dict) else str(value)
