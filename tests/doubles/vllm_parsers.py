"""vLLM's own parsers on the replies of a JSON file, in a process of its own: `python vllm_parsers.py REPLIES RESULTS`.

No double: the real parsers, faked is only their tokenizer, of which they ask the vocabulary. REPLIES is
{"hermes": [text], "llama": [text], "tagged": {parser: [text]}, "malformed": {parser: [text]}, "tools": [...],
"thinking": {parsers: [text]}, "harmony": [text]}; RESULTS is {peer: {text: [content, reasoning, [[name, arguments]]]}}.
"""

import importlib
import importlib.util
import json
import logging
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "<assistant>"]
TAGS = [
    *["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<minimax:tool_call>", "</minimax:tool_call>"],
    *["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"],
    "<|tool_call_argument_begin|>",
    *["<tool_calls>", "</tool_calls>", "<tool_sep>"],
    *["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'],
]
HUNYUAN_SUFFIX = ":opensource"
"""Of the markers of Hy3 as it was published; vLLM 0.24 looks for those of the preview, which are the same without."""
DEEPSEEK_WORDS = ["calls begin", "calls end", "call begin", "call end", "sep"]
TOKENIZER: Any = SimpleNamespace(get_vocab=lambda: {marker: number for number, marker in enumerate(MARKERS)})

TAGGED = {
    "qwen3_coder": "qwen3_engine_tool_parser.Qwen3EngineToolParser",
    "glm47": "glm47_moe_tool_parser.Glm47MoeModelToolParser",
    "minimax_m2": "minimax_m2_tool_parser.MinimaxM2ToolParser",
    "kimi_k2": "kimi_k2_tool_parser.KimiK2ToolParser",
    "deepseek_v3": "deepseekv3_tool_parser.DeepSeekV3ToolParser",
    "deepseek_v4": "deepseekv4_tool_parser.DeepSeekV4ToolParser",
    "hy_v3": "hy_v3_tool_parser.HYV3ToolParser",
    "gemma4": "gemma4_engine_tool_parser.Gemma4EngineToolParser",
}
"""Parsers of calls that are no plain JSON."""

THINKING = {"thinking": True, "enable_thinking": True, "reasoning_effort": "high"}
"""What a request says to a template, and so to vLLM's parsers, for the model to think."""
VOCABULARY_NAME = "o200k_base.tiktoken"
"""As openai_harmony looks for gpt-oss's vocabulary, whose digest it checks; litellm ships the same file."""
VOCABULARY_FILE = "litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"

type Reply = list[Any]


def main(replies_file: str, results_file: str) -> None:
    """Parse all replies by each peer."""
    from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
    from vllm.reasoning.qwen3_engine_reasoning_parser import Qwen3ParserReasoningAdapter
    from vllm.tool_parsers.llama_tool_parser import Llama3JsonToolParser

    logging.disable(logging.CRITICAL)
    replies = json.loads(Path(replies_file).read_text("utf-8"))
    hermes, llama = replies["hermes"], replies["llama"]
    results = {
        "hermes": {text: whole_hermes(text) for text in hermes},
        "deepseek_r1 and hermes": {text: thinking(DeepSeekR1ReasoningParser(TOKENIZER), text) for text in hermes},
        "qwen3 and hermes": {text: thinking(Qwen3ParserReasoningAdapter(TOKENIZER), text) for text in hermes},
        "llama3_json": {text: called(Llama3JsonToolParser(TOKENIZER).extract_tool_calls(text, None)) for text in llama},
    }
    for peer, texts in replies["tagged"].items():
        results[peer] = whole_tagged(TAGGED[peer], texts, replies["tools"])
    for peer, texts in replies["malformed"].items():
        results[f"malformed {peer}"] = whole_tagged(TAGGED[peer], texts, replies["tools"])
    for peer, texts in replies["thinking"].items():
        results[f"thinking {peer}"] = whole_turns(peer, texts, replies["tools"])
    results["harmony"] = whole_harmony(replies["harmony"], replies["tools"], Path(results_file).parent)
    Path(results_file).write_text(json.dumps(results, ensure_ascii=False), "utf-8")


def whole_hermes(text: str) -> Reply:
    """A whole reply at once."""
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    return called(Hermes2ProToolParser(TOKENIZER).extract_tool_calls(text, None))


def whole_tagged(path: str, texts: list[str], tools: list[Any]) -> dict[str, Reply]:
    """Whole replies at once, by one of `TAGGED`; a parser is made for each, as for each request."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    module, _, name = path.partition(".")
    made = getattr(importlib.import_module(f"vllm.tool_parsers.{module}"), name)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "."}], tools=tools)
    vocabulary = AnyVocabulary()
    shown = {text: text.replace(HUNYUAN_SUFFIX, "") for text in texts}
    return {text: called(made(vocabulary, request.tools).extract_tool_calls(shown[text], request)) for text in texts}


def whole_turns(peer: str, texts: list[str], tools: list[Any]) -> dict[str, Reply]:
    """Thinking, text and calls of whole replies, put together by vLLM as its server does; `peer` names its parsers."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    reasoning, _, calls = peer.partition(" and ")
    made: Any = ParserManager.get_parser(calls or reasoning, reasoning, enable_auto_tools=True)
    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "."}], tools=tools, chat_template_kwargs=THINKING
    )
    read: dict[str, Reply] = {}
    for text in texts:
        parser = made(AnyVocabulary(), request.tools, chat_template_kwargs=THINKING)
        shown = text.replace(HUNYUAN_SUFFIX, "")
        read[text] = as_reply(parser.parse(shown, request, enable_auto_tools=True))
    return read


def whole_harmony(texts: list[str], tools: list[Any], folder: Path) -> dict[str, Reply]:
    """Turns of gpt-oss, by their ids in its own vocabulary; a turn that the parser refuses is told by the error."""
    litellm = importlib.util.find_spec("litellm")
    assert litellm is not None
    assert litellm.origin is not None
    shutil.copy(Path(litellm.origin).parent / VOCABULARY_FILE, folder / VOCABULARY_NAME)
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(folder)
    from openai_harmony import HarmonyError  # type: ignore[import-untyped]
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
    from vllm.parser.parser_manager import ParserManager

    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "."}], tools=tools)
    made: Any = ParserManager.get_parser("openai", "openai_gptoss", enable_auto_tools=True, is_harmony=True)
    vocabulary, read = HarmonyVocabulary(get_encoding()), {}
    for text in texts:
        ids = vocabulary.encode(text)
        try:
            read[text] = as_reply(made(vocabulary, request.tools).parse("", request, True, ids))
        except HarmonyError as error:
            read[text] = [f"refused: {error}", None, []]
    return read


class HarmonyVocabulary:
    """What vLLM asks of gpt-oss's tokenizer, by openai's own encoding."""

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def encode(self, text: str) -> list[int]:
        """Ids of text in which special tokens count as such."""
        return list(self._encoding.encode(text, allowed_special="all"))

    def get_vocab(self) -> dict[str, int]:
        """The token that is looked up."""
        return {"<|end|>": self.encode("<|end|>")[0]}


def as_reply(parsed: tuple[str | None, str | None, list[Any] | None]) -> Reply:
    """What a parser of whole turns gives."""
    reasoning, content, calls = parsed
    return [content or "", reasoning, [[call.name, call.arguments] for call in calls or []]]


class AnyVocabulary:
    """Of the tokens that these parsers look up."""

    all_special_tokens: tuple[str, ...] = ()

    def get_vocab(self) -> dict[str, int]:
        """All of them."""
        bar, space = "\uff5c", "\u2581"
        deepseek = [f"<{bar}tool {words}{bar}>".replace(" ", space) for words in DEEPSEEK_WORDS]
        return {marker: number for number, marker in enumerate([*MARKERS, *TAGS, *deepseek])}


def thinking(parser: Any, text: str) -> Reply:
    """Thinking first, then calls in the rest, as vLLM's server does."""
    reasoning, content = parser.extract_reasoning(text, None)
    rest, _, calls = whole_hermes(content or "")
    return [rest, reasoning, calls]


def called(found: Any) -> Reply:
    """What a tool parser gives."""
    calls = [[call.function.name, call.function.arguments] for call in found.tool_calls]
    return [found.content or "", None, calls]


if __name__ == "__main__":
    main(*sys.argv[1:])
