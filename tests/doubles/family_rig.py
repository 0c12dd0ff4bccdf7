"""Families that the library `renderers` writes out by hand: replies as their templates write them, and readers.

Faked is the vocabulary: one token a byte, and the special tokens that the families' renderers look up.
"""

import json
from functools import cache
from itertools import pairwise
from typing import Any

from proxy_tokens import make_tokenizer
from tokenizers import AddedToken

from agentic.proxy.conversation import ReplyDelta
from agentic.proxy.renderers import harmony
from agentic.proxy.renderers.forms import (
    DEEPSEEK,
    DSML,
    GEMMA,
    HUNYUAN,
    INKLING,
    INVOKE,
    KIMI,
    XML,
    MarkedForm,
    TaggedForm,
    ThinkingMarks,
)
from agentic.proxy.renderers.library import MESSAGES, OWN_FORMS, LibraryRenderer, LibraryTokenizer
from agentic.proxy.renderers.tokens import TextTokenizer, TokenizerFiles

DEEPSEEK_NAMES = [
    *["begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant"],
    *["tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end"],
]
BAR = "\uff5c"
HUNYUAN_NAMES = [
    *["<think:opensource>", "</think:opensource>"],
    *(f"<{BAR}{name}:opensource{BAR}>" for name in ("hy_begin_of_sentence", "hy_eos", "hy_User", "hy_Assistant")),
    f"<{BAR}reasoning_mode:opensource{BAR}>",
    *["<tool_responses:opensource>", "</tool_responses:opensource>"],
    *["<tool_response:opensource>", "</tool_response:opensource>"],
]
GEMMA_NAMES = [
    *["<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>"],
    *["<|tool_response>", "<tool_response|>", "<|image>", "<|image|>", "<image|>"],
]
INKLING_NAMES = [
    *["<|message_user|>", "<|message_system|>", "<|message_tool|>", "<|content_image|>", "<|content_audio_input|>"],
    *["<|content_xml|>", "<|content_model_end_sampling|>", "<|audio_end|>", "<|unused_200054|>", "<|unused_200053|>"],
]
SPECIAL = [
    *["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|begin_of_image|>", "/nothink"],
    *["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
    *harmony.MARKERS,
    "<|return|>",
    *["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "[EOS]", "[BOS]"],
    *["<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"],
    *KIMI.markers,
    *DEEPSEEK.markers,
    *(DEEPSEEK.name_open.replace("tool\u2581sep", name) for name in DEEPSEEK_NAMES),
    *["〈|EOS|〉", "<assistant>", "</assistant>"],
    *["]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"],
    f"{BAR}DSML{BAR}",
    *(
        f"<{BAR}{name}{BAR}>"
        for name in ("latest_reminder", "action", "query", "authority", "domain", "title", "read_url")
    ),
    *HUNYUAN_NAMES,
    *HUNYUAN.markers,
    *GEMMA_NAMES,
    *GEMMA.markers,
    *INKLING_NAMES,
    *INKLING.markers,
]
ADDED = [
    *["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"],
    *["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
]
SCHEMAS: dict[str, Any] = {
    "cmd": {"type": "string"},
    "old": {"type": ["string"]},
    "count": {"type": "integer"},
    "paths": {"type": "array", "items": {"type": "string"}},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
}
TOOLS = [
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": SCHEMAS}}},
    {"type": "function", "function": {"name": "stop"}},
]
TAGGED = sorted(name for name, form in OWN_FORMS.items() if isinstance(form.calls, TaggedForm))
MARKED = sorted(name for name, form in OWN_FORMS.items() if isinstance(form.calls, MarkedForm))
BY_VALUE = [*TAGGED, "gemma4"]
"""Families whose arguments are written value by value, and become JSON here."""
FAMILIES = [*BY_VALUE, *MESSAGES]


@cache
def shown_tokenizer() -> LibraryTokenizer:
    """The vocabulary of all families."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    files = TokenizerFiles("", {"eos_token": "<|im_end|>"})
    return LibraryTokenizer("some/model", TextTokenizer(tokenizer), files)


@cache
def library_of(family: str) -> Any:
    """The library's own renderer."""
    import renderers

    return renderers.create_renderer(shown_tokenizer(), renderers.config_from_name(family))


@cache
def renderer_of(family: str) -> LibraryRenderer:
    """The proxy's."""
    return LibraryRenderer(library_of(family), shown_tokenizer(), family)


def streamed(renderer: LibraryRenderer, ids: list[int], cuts: list[int], has_tools: bool = True) -> list[ReplyDelta]:
    """What a stream cut at these places gives."""
    parser = renderer.stream_parser(TOOLS if has_tools else None)
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [*(delta for start, end in pairwise(edges) for delta in parser.feed(ids[start:end])), *parser.finish()]


def marks_of(family: str) -> ThinkingMarks:
    """What the family's thinking stands between."""
    if family in MESSAGES:
        return ThinkingMarks(INKLING.thinking, f"{INKLING.end}{INKLING.start}")
    return OWN_FORMS[family].marks


def thought(family: str, text: str) -> str:
    """Thinking as the family writes it, up to where the text begins."""
    marks = marks_of(family)
    if family in MESSAGES:
        return f"{marks.opening}{text}{marks.closing}{INKLING.text}"
    return f"{marks.opening}{marks.label or chr(10)}{text}\n{marks.closing}\n\n"


def written(family: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Calls as the family's template writes them, after a text."""
    if family in MESSAGES:
        return INKLING.end + "".join(_invoked(name, own) for name, own in calls)
    form = OWN_FORMS[family].calls
    match form:
        case _ if form is INVOKE:
            invokes = "\n".join(f'<invoke name="{name}">\n{_params(form, own)}</invoke>' for name, own in calls)
            return f"<minimax:tool_call>\n{invokes}\n</minimax:tool_call>"
        case _ if form is XML:
            blocks = [f"<function={name}>\n{_params(form, own)}</function>\n" for name, own in calls]
            return "\n".join(f"<tool_call>\n{block}</tool_call>" for block in blocks)
        case _ if form is DSML:
            invokes = "\n".join(f'{form.name_open}{name}">\n{_dsml(own)}\n{form.call_end}' for name, own in calls)
            return f"{form.opening}\n{invokes}\n{form.closing}"
        case _ if form is HUNYUAN:
            blocks = [f"{form.name_open}{name}{form.name_end}\n{_pairs(own)}{form.call_end}\n" for name, own in calls]
            return f"{form.opening}\n{''.join(blocks)}{form.closing}"
        case _ if form is GEMMA:
            return "".join(f"{form.opening}call:{name}{quoted(own)}{form.closing}" for name, own in calls)
    return "".join(f"<tool_call>{name}\n{_params(form, own)}</tool_call>" for name, own in calls)


def quoted(value: Any) -> str:
    """A value in Gemma's form."""
    match value:
        case str():
            return f"{GEMMA.quote}{value}{GEMMA.quote}"
        case dict():
            return "{" + ",".join(f"{key}:{quoted(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(quoted, value)) + "]"
    return json.dumps(value)


def _invoked(name: str, own: dict[str, Any]) -> str:
    shown = json.dumps({"name": name, "args": own}, ensure_ascii=False, separators=(",", ":"))
    return f"{INKLING.start}{name}{INKLING.calls[0]}{shown}{INKLING.end}"


def shown_value(value: Any) -> str:
    """A value between tags."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _params(form: object, arguments: dict[str, Any]) -> str:
    texts = {key: shown_value(value) for key, value in arguments.items()}
    match form:
        case _ if form is XML:
            return "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
        case _ if form is INVOKE:
            return "".join(f'<parameter name="{key}">{text}</parameter>\n' for key, text in texts.items())
    return "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n" for key, text in texts.items())


def _dsml(arguments: dict[str, Any]) -> str:
    parts = [
        f'{DSML.key_open}{key}" string="{str(isinstance(value, str)).lower()}">{shown_value(value)}{DSML.value_end}'
        for key, value in arguments.items()
    ]
    return "\n".join(parts)


def _pairs(arguments: dict[str, Any]) -> str:
    form = HUNYUAN
    parts = [
        f"{form.key_open}{key}{form.key_end}\n{form.value_open}{shown_value(value)}{form.value_end}\n"
        for key, value in arguments.items()
    ]
    return "".join(parts)


def marked(family: str, calls: list[tuple[str, str]]) -> str:
    """Calls as the family's template writes them, whose arguments are JSON between markers."""
    form = OWN_FORMS[family].calls
    if form is KIMI:
        parts = [f"<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>{own}<|tool_call_end|>"
                 for n, (name, own) in enumerate(calls)]  # fmt: skip
        return f"<|tool_calls_section_begin|>{''.join(parts)}<|tool_calls_section_end|>"
    parts = [
        f"{DEEPSEEK.call_open}function{DEEPSEEK.name_open}{name}\n```json\n{own}\n```{DEEPSEEK.call_end}"
        for name, own in calls
    ]
    return DEEPSEEK.opening + "\n".join(parts) + DEEPSEEK.closing
