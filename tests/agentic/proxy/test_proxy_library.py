"""Families written out by the library `renderers`, on a folder named and templated like Qwen3."""

import json
from pathlib import Path

import pytest
from proxy_tokens import TINY_TEMPLATE, make_tokenizer

from agentic.proxy.conversation import Message
from agentic.proxy.renderers import HeldTurn, make_renderer
from agentic.proxy.renderers.library import LibraryRenderer
from agentic.proxy.renderers.template import TemplateRenderer

ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


def qwen3_folder(folder: Path, template: str = TINY_TEMPLATE) -> Path:
    """A folder whose tokenizer has Qwen3's special tokens."""
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(list(ADDED))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> LibraryRenderer:
    """The library's Qwen3, loaded once."""
    found = make_renderer(qwen3_folder(tmp_path_factory.mktemp("models") / "Qwen3-4B"))
    assert isinstance(found, LibraryRenderer)
    return found


def ids_of(text: str) -> list[int]:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(list(ADDED))
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_a_folder_with_a_family_s_name_but_another_template_is_rendered_by_its_template(tmp_path: Path) -> None:
    other = TINY_TEMPLATE.replace("\n{{ m['content'] }}", "\n\n{{ m['content'] }}")
    assert isinstance(make_renderer(qwen3_folder(tmp_path / "Qwen3-4B", other)), TemplateRenderer)


def test_a_bridge_keeps_sampled_thinking_within_a_tool_cycle(renderer: LibraryRenderer) -> None:
    first = [Message("user", "go")]
    completion = ids_of(
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call><|im_end|>'
    )
    message = renderer.parse(completion, TOOLS)
    assert (message.reasoning, [call.name for call in message.tool_calls]) == ("hm", ["run"])
    conversation = [*first, message, Message("tool", "ok")]
    suffix = renderer.bridge(HeldTurn(renderer.render(first, TOOLS), completion, 2), conversation, TOOLS)
    assert suffix is not None
    assert suffix[: len(ids_of("\n<|im_start|>user"))] == ids_of("\n<|im_start|>user")
    assert suffix[-len(ids_of("<|im_start|>assistant\n")) :] == ids_of("<|im_start|>assistant\n")


def test_a_new_question_forks_since_qwen3_drops_earlier_thinking(renderer: LibraryRenderer) -> None:
    first = [Message("user", "go")]
    completion = ids_of("<think>\nhm\n</think>\n\nyes<|im_end|>")
    conversation = [*first, renderer.parse(completion, None), Message("user", "why?")]
    assert renderer.bridge(HeldTurn(renderer.render(first, None), completion, 2), conversation, None) is None


def test_malformed_calls_and_calls_without_tools_stay_text(renderer: LibraryRenderer) -> None:
    broken = "<tool_call>\n{nonsense\n</tool_call>"
    assert renderer.parse(ids_of(f"a {broken}<|im_end|>"), TOOLS).content == f"a {broken}"
    whole = '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>'
    assert renderer.parse(ids_of(f"{whole}<|im_end|>"), None).content == whole


def test_the_family_s_stop_tokens_are_taken(renderer: LibraryRenderer) -> None:
    assert ids_of("<|im_end|>")[0] in renderer.stop_token_ids
