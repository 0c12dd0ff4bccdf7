"""A tokenizer to measure with: byte-pair merges trained on Python's own library in seconds, and a ChatML template.

Real enough to cost what a real one costs (about four characters a token of source code), and there on every machine.
"""

import json
import sysconfig
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 16_000
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


FILES, TEXT_FILES = 120, 40


def corpus(files: int) -> list[str]:
    """Source text of the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [path.read_text("utf-8", "replace") for path in sorted(folder.glob("*.py"))[:files]]


def write_model_folder(folder: Path, vocabulary: int = VOCABULARY, files: int = FILES) -> Path:
    """A Hugging Face folder with tokenizer and template; made once."""
    if (folder / "tokenizer_config.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(files), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


class Text:
    """Text of a wanted length in tokens, different each time it is asked for."""

    def __init__(self, folder: Path, files: int = TEXT_FILES) -> None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._text = "\n".join(corpus(files))
        self._offsets = [start for start, _ in tokenizer.encode(self._text).offsets]
        self._position = 0
        self.end_id = int(tokenizer.token_to_id("<|im_end|>"))
        self.reply_ids = tokenizer.encode("I look at the file before I change it, line by line. " * 200).ids

    def take(self, tokens: int) -> str:
        """The next so many tokens, as text."""
        if self._position + tokens >= len(self._offsets):
            self._position = self._position % 7 + 1
        start, self._position = self._position, self._position + tokens
        return self._text[self._offsets[start] : self._offsets[self._position]]

    @property
    def characters_per_token(self) -> float:
        """Of the text."""
        return len(self._text) / len(self._offsets)
