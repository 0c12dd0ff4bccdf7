"""A model without weights for trying tasks and agents by hand: its replies come from a file, one after the other.

The file is YAML or JSON: a list of replies, each a text. Its tokenizer needs no download: one token a byte, and the
marks of ChatML, so that all of a trial (rendering, capture, transcript) is as with a real model.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from agentic.proxy import Renderer, ScriptedEngine, ScriptedReply, make_renderer
from agentic.rollout.errors import RolloutConfigError

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def read_script(path: Path) -> list[str]:
    """The replies. Raises RolloutConfigError in one line."""
    try:
        replies: Any = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RolloutConfigError(f"--model scripted:{path}: {' '.join(str(error).split())}") from error
    if not isinstance(replies, list) or not replies or not all(isinstance(reply, str) and reply for reply in replies):
        raise RolloutConfigError(f"--model scripted:{path}: write a list of replies, each a text that is not empty")
    return replies


def scripted_engine(replies: Sequence[str], renderer: Renderer) -> ScriptedEngine:
    """Says them in order, each ended as a model ends its turn."""
    end = renderer.stop_token_ids[0]
    return ScriptedEngine([ScriptedReply((*renderer.encode(reply), end)) for reply in replies])


def byte_renderer(folder: Path) -> Renderer:
    """A renderer of ChatML over bytes; its tokenizer's files are written to `folder`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in (START, END)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": TEMPLATE}))
    return make_renderer(folder)
