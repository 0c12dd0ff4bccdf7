"""The tiny policy's tokenizer and its chat, encoded piece by piece.

Byte-level BPE over pieces cut so that one code form is one token and no piece reaches across a newline that a message
starts or ends with. The chat template only appends. `ChatEncoder` encodes each literal of the template and each
message on its own, as the proxy does, and what it gives equals the rendered chat.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PIECES = (
    r"```bash\n|\n```(?!\w)",
    r"sed -i '",
    r" ?mod\.py",
    r"\\?\[(?:-?n:|:-?n|[012]|-[12])\\?\]",
    r"(?:sum|max|min|len)\(| (?=(?:sum|max|min|len)\()",
    r", default=(?:None|\d)\)",
    r"\([abc], [abc], [abc]\)",
    r"\((?:1, )?n(?: \+ 1)?\)",
    r"\n {4,}|\n",
    r" ?[a-zA-Z]+",
    r"\d|_",
    r"[\t ]+(?=[\sA-Za-z\d])",
    r" ?\\\*",
    r" ?[^\sA-Za-z\d_|'`\\\[()]+",
    r".",
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Message(NamedTuple):
    """One chat message."""

    role: str
    content: str


def train_tokenizer(
    corpus: Iterable[str], entries: int, pieces: Sequence[str] = PIECES, template: str = TEMPLATE
) -> Any:
    """A `PreTrainedTokenizerFast` with exactly `entries` entries when the corpus is rich enough."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(pieces)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        bos_token=None,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return fast


class ChatEncoder:
    """Turns chats into ids by appending: nothing that was encoded is encoded again."""

    def __init__(self, tokenizer: Any, gap: str = "\n") -> None:
        """`gap`: what the template writes between two messages."""
        self._tokenizer = tokenizer
        self.end = int(tokenizer.eos_token_id)
        self.gap = self.encode(gap)
        self._user = self.encode(f"{START}user\n")
        self._assistant = self.encode(f"{START}assistant\n")

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def first_prompt(self, instruction: str) -> list[int]:
        return [*self._user, *self.encode(instruction), self.end, *self.gap, *self._assistant]

    def observation(self, message: Message) -> list[int]:
        """What follows a sampled turn that ended with the end of turn."""
        opened = self._user if message.role == "user" else self.encode(f"{START}{message.role}\n")
        return [*self.gap, *opened, *self.encode(message.content), self.end, *self.gap, *self._assistant]

    def demonstration(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """Ids of a whole chat, and 1 where the assistant speaks."""
        ids = self.first_prompt(messages[0].content)
        mask = [0] * len(ids)
        for message in messages[1:]:
            speaks = message.role == "assistant"
            new = [*self.encode(message.content), self.end] if speaks else self.observation(message)
            ids += new
            mask += [int(speaks)] * len(new)
        return ids, mask
