"""Text that is encoded word by word has the ids that the library gives the whole text."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from agentic.proxy.renderers import words
from agentic.proxy.renderers.tokens import LITERALS, TextTokenizer

QWEN2, LLAMA3 = words.SPLITTERS
CORPUS = [
    "I'm sure they'll say it's what we've done; you'd see THEY'RE right.\n\n",
    "    return  x[i] + 1234567\r\n\t# 100% of it\n",
]
ADDED, SPECIAL = "<tool_call>", "<|im_end|>"


def split_tokenizer(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])


SPLITS: dict[str, Callable[[], Any]] = {
    "gpt2": byte_level,
    "digits": digits,
    "qwen2": lambda: split_tokenizer(QWEN2),
    "llama3": lambda: split_tokenizer(LLAMA3),
}


def make_backend(split: Any) -> Tokenizer:
    """Merges that cross what splitting has to keep apart: words, blanks, digits, marks."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(ADDED, normalized=False)])
    return tokenizer


BESIDE = " it is what\nwe said" * 80
TOKENIZERS = {name: make_backend(split()) for name, split in SPLITS.items()}
TEXT_TOKENIZERS = {name: TextTokenizer(backend) for name, backend in TOKENIZERS.items()}
PIECES = st.sampled_from(
    [
        *("'s", "'LL", "don't", "x", "_", "->", "...", "A", "return", "word" * 12, "12", "3", "<tool", ADDED, SPECIAL),
        *(" ", "  ", "\n", "\r\n", "\t", "\x0b", "\x0c", "\x1c", "\x1f", "\x7f", "\x00"),
        *("é", "e\u0301", "\u0301", "\u017f", "日本", "\u00a0", "\u2028", "\u0085", "\u0661", "🙂"),
    ]
)
TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60) | st.text("a' \n\r1-", max_size=60)


def library_ids(backend: Tokenizer, text: str) -> list[int]:
    backend.encode_special_tokens = True
    return list(backend.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", SPLITS)
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_words_have_the_ids_of_the_text(name: str, text: str) -> None:
    expected = library_ids(TOKENIZERS[name], text)
    encoder = words.make_word_encoder(TOKENIZERS[name], lambda word: library_ids(TOKENIZERS[name], word))
    assert encoder is not None
    # Beside so much else, a few other characters are no reason to leave all of it to the library.
    among = BESIDE + text + BESIDE
    assert encoder.encode(among) == library_ids(TOKENIZERS[name], among)
    for _ in range(3):  # first mostly by the library, then by words that are known
        assert TEXT_TOKENIZERS[name].encode_content(text) == expected
        assert encoder.encode(text) == expected


def test_a_word_that_is_known_is_not_encoded_again() -> None:
    asked: list[str] = []

    def length(text: str) -> list[int]:
        asked.append(text)
        return [len(text)]

    encoder = words.make_word_encoder(TOKENIZERS["gpt2"], length)
    assert encoder is not None
    encoder.encode("one two three")
    assert sorted(asked) == [" three", " two", "one", "one two three"]
    assert encoder.encode("one two two three three three") == [3, 4, 4, 6, 6, 6]
    assert len(asked) == 4


def test_words_are_forgotten_before_there_are_too_many() -> None:
    encoder = words.make_word_encoder(TOKENIZERS["gpt2"], lambda text: library_ids(TOKENIZERS["gpt2"], text))
    assert encoder is not None
    for start in range(0, 2 * words.MOST_WORDS, 32):
        encoder.encode(" ".join(f"{number}" for number in range(start, start + 32)))
    assert 0 < len(encoder._known) <= words.MOST_WORDS


@pytest.mark.parametrize("length", [2, 8, words.LONGEST_WORD, words.LONGEST_WORD + 1])
def test_what_is_held_is_bounded_whatever_the_words_are(length: int) -> None:
    encoder = words.make_word_encoder(TOKENIZERS["gpt2"], lambda text: list(text.encode()))
    assert encoder is not None
    most = 0
    for start in range(0, 2 * words.MOST_WORDS, words.LEARNED):
        names = (_name(number, length) for number in range(start, start + words.LEARNED))
        encoder.encode(" " + " ".join(names))
        held = encoder._known
        most = max(most, len(held))
        if start % (64 * words.LEARNED) == 0 or len(held) < most:
            assert sum(map(len, held)) <= words.MOST_CHARACTERS
    ids = sum(map(len, encoder._known.values()))
    assert ids <= words.MOST_CHARACTERS
    assert most <= words.MOST_WORDS
    assert (most > 0) == (length < words.LONGEST_WORD + 1)


def _name(number: int, length: int) -> str:
    """A word of this length with a blank before it, another one for each number as far as there are so many."""
    letters = ""
    while number or not letters:
        number, letter = divmod(number, 26)
        letters += chr(ord("a") + letter)
    return letters.rjust(length - 1, "z")[-(length - 1) :]


@pytest.mark.parametrize("every", [1, 3, 10])
def test_text_with_other_characters_here_and_there_is_encoded_by_the_library_at_once(every: int) -> None:
    asked: list[str] = []

    def count(text: str) -> list[int]:
        asked.append(text)
        return [len(text)]

    encoder = words.make_word_encoder(TOKENIZERS["gpt2"], count)
    assert encoder is not None
    text = " ".join("caf\u00e9" if number % every == 0 else "coffee" for number in range(1000))
    for times in range(1, 4):
        encoder.encode(text)
        assert len(asked) == times
    few = "coffee " * 100 + "caf\u00e9" + " coffee" * 100
    encoder.encode(few)
    before = len(asked)
    encoder.encode(few)
    assert len(asked) == before + 1
    assert len(asked[-1]) < 20


def test_a_splitting_that_is_called_like_one_of_ours_is_none() -> None:
    for pattern in ("digits", "", "ByteLevel"):
        backend = make_backend(split_tokenizer(pattern))
        assert words.make_word_encoder(backend, lambda text: []) is None


def test_normalizers_in_a_row_leave_ascii_if_each_does() -> None:
    backend = Tokenizer.from_str(TOKENIZERS["gpt2"].to_str())
    for parts, is_known in (
        ([], True),
        ([normalizers.NFC()], True),
        ([normalizers.NFC(), normalizers.Lowercase()], False),
    ):
        backend.normalizer = normalizers.Sequence(parts)
        assert (words.make_word_encoder(backend, lambda text: []) is not None) == is_known


@pytest.mark.parametrize(
    "spoil",
    [
        lambda backend: setattr(backend, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda backend: setattr(backend, "pre_tokenizer", split_tokenizer(r"\w+")),
        lambda backend: setattr(backend, "normalizer", normalizers.Lowercase()),
        lambda backend: backend.enable_truncation(5),
        lambda backend: backend.enable_padding(),
        lambda backend: setattr(backend.model, "dropout", 0.1),
    ],
    ids=["prefix", "other splitting", "lower case", "truncation", "padding", "dropout"],
)
def test_a_tokenizer_that_splits_otherwise_is_left_to_the_library(spoil: Callable[[Tokenizer], None]) -> None:
    backend = Tokenizer.from_str(TOKENIZERS["gpt2"].to_str())
    assert words.make_word_encoder(backend, lambda text: []) is not None
    spoil(backend)
    assert words.make_word_encoder(backend, lambda text: []) is None


def test_the_form_of_the_splitters_is_the_one_that_the_library_writes() -> None:
    state = json.loads(split_tokenizer(QWEN2).__getstate__())
    assert state["pretokenizers"][0]["pattern"] == {"Regex": QWEN2}


def test_template_text_that_all_conversations_have_is_known_again_after_much_that_one_has() -> None:
    tokenizer = TextTokenizer(TOKENIZERS["gpt2"])
    for number in range(3 * LITERALS):
        tokenizer.encode_template(f"only once: {number}")
    expected = library_ids(TOKENIZERS["gpt2"], "<assistant>")
    assert tokenizer.encode_template("<assistant>") == tokenizer.encode_template("<assistant>") == expected
    assert "<assistant>" in tokenizer._literals
    assert len(tokenizer._literals) <= LITERALS
