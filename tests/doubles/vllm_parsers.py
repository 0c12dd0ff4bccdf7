"""vLLM's own parsers on the replies of a JSON file, in a process of its own: `python vllm_parsers.py REPLIES RESULTS`.

No double: the real parsers, faked is only their tokenizer, of which they ask the vocabulary. REPLIES is
{"hermes": [text], "llama": [text]}; RESULTS is {peer: {text: [content, reasoning, [[name, arguments]]]}}.
"""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"]
TOKENIZER: Any = SimpleNamespace(get_vocab=lambda: {marker: number for number, marker in enumerate(MARKERS)})

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
    Path(results_file).write_text(json.dumps(results, ensure_ascii=False), "utf-8")


def whole_hermes(text: str) -> Reply:
    """A whole reply at once."""
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    return called(Hermes2ProToolParser(TOKENIZER).extract_tool_calls(text, None))


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
