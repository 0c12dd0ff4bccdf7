"""Text of token ids as they arrive: never a part of a character, and all texts together are the text of all ids.

Almost every tokenizer of today is byte-level: each token is some bytes, so a decoder of UTF-8 that keeps the bytes of
an unfinished character is all that is needed, at a cost for each token that does not depend on what came before. For
the others the library's own stream decoder is used. Bytes that are no UTF-8 become U+FFFD.
"""

import codecs
import json
from collections.abc import Collection, Sequence
from typing import Any, Protocol


class Detokenizer(Protocol):
    """One text from its first id to its last."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain now and was not before."""
        ...

    def finish(self) -> str:
        """What is left of an unfinished character; nothing is fed afterwards."""
        ...


class Vocabulary(dict[int, bytes]):
    """The bytes of each token of a byte-level tokenizer, looked up once; empty for an id that does not exist."""

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self._backend = backend
        self._letters = _byte_of_letter()

    def __missing__(self, token_id: int) -> bytes:
        text = self._backend.id_to_token(token_id) or ""
        known = [self._letters.get(letter) for letter in text]
        # Text of added tokens is written as it is, so it may hold letters that stand for no byte.
        found = text.encode() if None in known else bytes(value for value in known if value is not None)
        self[token_id] = found
        return found


class ByteDetokenizer:
    """For byte-level tokenizers."""

    def __init__(self, vocabulary: Vocabulary, hidden: Collection[int]) -> None:
        self._vocabulary = vocabulary
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Sequence[int]) -> str:
        """Whole characters."""
        vocabulary, hidden = self._vocabulary, self._hidden
        return self._decoder.decode(b"".join([vocabulary[token] for token in ids if token not in hidden]))

    def finish(self) -> str:
        """U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)


class LibraryDetokenizer:
    """For all other tokenizers: the text whose end is still open is decoded again with each token."""

    def __init__(self, backend: Any, hidden: Collection[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = backend
        self._hidden = hidden
        self._stream = DecodeStream(skip_special_tokens=False)
        self._open: list[int] = []

    def feed(self, ids: Sequence[int]) -> str:
        """What the library's stream gives."""
        texts = []
        for token in ids:
            if token in self._hidden:
                continue
            self._open.append(token)
            text = self._stream.step(self._backend, token)
            if text is not None:
                texts.append(text)
                self._open.clear()
        return "".join(texts)

    def finish(self) -> str:
        """The tokens that the stream kept back."""
        return str(self._backend.decode(self._open, skip_special_tokens=False)) if self._open else ""


def is_byte_level(backend: Any) -> bool:
    """Whether the tokenizer turns ids into text by bytes."""
    decoder = backend.decoder
    if decoder is None:
        return False
    state = json.loads(decoder.__getstate__())
    last = state["decoders"][-1] if state["type"] == "Sequence" else state
    return bool(last["type"] == "ByteLevel")


def _byte_of_letter() -> dict[str, int]:
    """The letters by which byte-level vocabularies write bytes: printable ones stand for themselves, the rest follow
    from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in shown]
    return {chr(value): value for value in shown} | {chr(256 + n): value for n, value in enumerate(others)}
