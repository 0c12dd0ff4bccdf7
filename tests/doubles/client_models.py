"""Scripted models for real clients: a folder with tokenizer and template, and a script in the model's own text form.

The tokenizer has merges, and scripted replies are sampled letter by letter: re-encoding their text would give other
ids, so a capture that re-encodes what was sampled cannot pass.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy_tokens import QWEN_LIKE_TEMPLATE, SPECIALS, TINY_TEMPLATE, make_tokenizer
from tokenizers import Tokenizer

from agentic.proxy import CallSampling, ScriptedReply

MERGES = (("c", "a"), ("ca", "l"), ("cal", "c"), ("a", "d"), ("ad", "d"))
"""`calc` and `add` are one token each where text is encoded."""

THINKING = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens that Qwen3 has as well."""

CHUNK_TOKENS = 7
"""Tokens in a chunk of the scripted engine: replies come in many pieces."""

CHUNK_SECONDS = 0.003
"""Time between chunks, so that each reaches the client alone."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A tokenizer and a template on disk; `thinks` is a family that opens its replies with a thought."""

    path: Path
    tokenizer: Tokenizer
    thinks: bool

    def sample(self, text: str) -> tuple[int, ...]:
        """Ids of text, one a letter; special tokens count as such."""
        names = (*SPECIALS, *(THINKING if self.thinks else ()))
        pieces = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
        parts = [part for piece in pieces for part in ([piece] if piece in names else piece)]
        return tuple(n for part in parts for n in self.tokenizer.encode(part, add_special_tokens=False).ids)

    def text(self, ids: Sequence[int]) -> str:
        """Text with special tokens shown."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


def make_model(folder: Path, thinks: bool) -> ModelFolder:
    """Qwen2.5's ways by the template renderer, or Qwen3's by the library `renderers`."""
    path = folder / ("Qwen3-4B" if thinks else "tools")
    path.mkdir(parents=True)
    tokenizer = make_tokenizer(MERGES)
    if thinks:
        tokenizer.add_tokens(list(THINKING))
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TINY_TEMPLATE if thinks else QWEN_LIKE_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return ModelFolder(path, tokenizer, thinks)


def call(name: str, **arguments: Any) -> str:
    """A tool call as the model writes it."""
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


@dataclass
class Script:
    """What the model says: the next of `turns`, or, once each, an aside where the prompt holds a certain text."""

    model: ModelFolder
    turns: Sequence[str]
    asides: Mapping[str, str]
    """Reply by a text that the prompt holds; for titles, summaries and the like."""
    _said: set[str] = field(default_factory=set)
    _taken: int = 0

    def __call__(self, prompt_ids: Sequence[int], _sampling: CallSampling, _request_id: str) -> ScriptedReply:
        """The reply to a prompt."""
        thought = "<think>\nLet me see.\n</think>\n\n" if self.model.thinks else ""
        reply = self._aside(self.model.text(prompt_ids)) or self._next()
        ids = self.model.sample(f"{thought}{reply}<|im_end|>")
        return ScriptedReply(ids, chunk_tokens=CHUNK_TOKENS, delay_seconds=CHUNK_SECONDS)

    def _aside(self, prompt: str) -> str | None:
        found = next((text for text in self.asides if text in prompt and text not in self._said), None)
        if found is None:
            return None
        self._said.add(found)
        return self.asides[found]

    def _next(self) -> str:
        number, self._taken = self._taken, self._taken + 1
        return self.turns[number] if number < len(self.turns) else "There is nothing left to do."
