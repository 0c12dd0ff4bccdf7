"""Message text encoded word by word, each word once: 1.0 ms instead of 3.6 ms for 20,000 characters of known words.

(SmolLM2's vocabulary, the project's own documents and code, one core of an AMD EPYC.)

A byte-level tokenizer splits text into words by a regular expression and merges bytes within a word alone. So the ids
of a text are those of its words, and a word that was encoded before need not be encoded again. What a word's ids are,
the library says; only the splitting is done here, and only where it is known to be the same:

- for the expressions in `SPLITTERS`, the pre-tokenizers of nearly all byte-level models;
- for ASCII, where there is no question what a letter or a space is. A text with other characters is cut between ASCII
  letters and white space after them: in none of the expressions does a word go on there, or depend on what follows.
  Parts with other characters are the library's;
- for text without added tokens, which the library finds before it splits.

Texts of mostly new words, those with other characters here and there, and long ones are left to the library: it is
faster there, and lets other threads run.
"""

import json
import re
import threading
from collections.abc import Callable
from itertools import chain, groupby, islice
from typing import Any

MOST_WORDS, MOST_CHARACTERS = 1 << 16, 1 << 19
"""Words that are held, and their characters, of which each may be an id; then all of them are forgotten. 10 to 16 MB,
measured with random letters, the worst of words, in words of 6 to 32 characters (SmolLM2's vocabulary)."""
LONGEST_WORD = 32
"""Characters; longer words are seldom seen twice."""
MOST_MIXED = 150
"""A text in which other characters stand at more than one place in so many characters goes to the library."""
LONGEST_TEXT = 50_000
"""Characters. Up to here encoding takes a few milliseconds."""
MOST_NEW = 8
"""A text of which more than one different word in so many is new goes to the library."""
LEARNED = 64
"""New words of such a text that are held all the same."""

_ENDS = r"(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
_GPT2 = r" ?[A-Za-z]+|'(?:s|t|re|ve|m|ll|d)| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
_DIGITS = r" ?[A-Za-z]+|'(?:s|t|re|ve|m|ll|d)|[0-9]| ?[^\sA-Za-z0-9]+|\s+(?![^\s0-9])|\s+"
_QWEN2 = rf"'{_ENDS}|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _QWEN2.replace("|[0-9]|", "|[0-9]{1,3}|")

SPLITTERS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": (
        _QWEN2
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ): _LLAMA3,
}
"""What a tokenizer splits by, and the same for ASCII."""

_OTHERS = re.compile(r"[^\x00-\x7f]+")
_CUT = re.compile(r"(?<=[A-Za-z])(?=[ \n])")

type Encode = Callable[[str], list[int]]


class WordEncoder:
    """Ids of texts by those of their words."""

    def __init__(self, splitter: str, added: tuple[str, ...], encode: Encode) -> None:
        """`added` are the tokens that `encode`, the library, finds in a text before it splits it."""
        self._split = re.compile(splitter, re.ASCII).findall
        self._added = re.compile("|".join(map(re.escape, added))) if added else None
        self._encode = encode
        self._known: dict[str, list[int]] = {}
        self._characters = 0
        self._learning = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """The text's ids, as the library gives them."""
        if len(text) > LONGEST_TEXT or (self._added is not None and self._added.search(text) is not None):
            return self._encode(text)
        if text.isascii():
            return self._words(text)
        if _is_mixed(text):
            return self._encode(text)
        ids: list[int] = []
        for is_ascii, parts in groupby(_CUT.split(text), str.isascii):
            part = "".join(parts)
            ids += self._words(part) if is_ascii else self._encode(part)
        return ids

    def _words(self, text: str) -> list[int]:
        words: list[str] = self._split(text)
        known = self._known
        different = set(words)
        new = [word for word in different if word not in known]
        if not new:
            return list(chain.from_iterable(map(known.__getitem__, words)))
        are_many = len(new) * MOST_NEW > len(different)
        known = self._learn(new[:LEARNED] if are_many else new)
        if are_many:
            return self._encode(text)
        return list(chain.from_iterable([known.get(word) or self._encode(word) for word in words]))

    def _learn(self, words: list[str]) -> dict[str, list[int]]:
        """Hold these words, but for long ones; gives what is held."""
        learned = {word: self._encode(word) for word in words if len(word) <= LONGEST_WORD}
        characters = sum(map(len, learned))
        with self._learning:
            if len(self._known) + len(learned) > MOST_WORDS or self._characters + characters > MOST_CHARACTERS:
                self._known, self._characters = {}, 0  # a new one: another thread may be reading the old one
            self._known |= learned
            self._characters += characters
            return self._known


def _is_mixed(text: str) -> bool:
    """Whether other characters than ASCII stand at so many places that the library is faster."""
    most = len(text) // MOST_MIXED
    return next(islice(_OTHERS.finditer(text), most, None), None) is not None


def make_word_encoder(backend: Any, encode: Encode) -> WordEncoder | None:
    """For a tokenizer of the library `tokenizers` whose splitting is known, or None."""
    splitter = _splitter(backend)
    cuts = backend.truncation is not None or backend.padding is not None or getattr(backend.model, "dropout", None)
    if splitter is None or cuts or not _leaves_ascii(_state(backend.normalizer)):
        return None
    added = backend.get_added_tokens_decoder().values()
    return WordEncoder(splitter, tuple(token.content for token in added if not token.special), encode)


def _splitter(backend: Any) -> str | None:
    """What it splits ASCII by, None where the tokenizer is no byte-level one or splits otherwise."""
    if type(backend.model).__name__ != "BPE":
        return None
    match _state(backend.pre_tokenizer):
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
        }:
            return _DIGITS
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return SPLITTERS.get(pattern)
    return None


def _leaves_ascii(normalizer: Any) -> bool:
    match normalizer:
        case None | {"type": "NFC" | "NFD" | "NFKC" | "NFKD"}:
            return True
        case {"type": "Sequence", "normalizers": parts}:
            return all(map(_leaves_ascii, parts))
    return False


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())
