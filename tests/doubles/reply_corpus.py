"""Replies such as models write, well formed and not, generated the same way each time.

Faked is the model: pieces of thinking, text and calls are put together by a grammar, then some replies are cut, lose a
character or get one twice. Nothing here knows how any parser reads them.
"""

import json
import re
from collections.abc import Callable
from random import Random

THOUGHTS = ["\nI should look.\n", "", "\n\n", "a < b & c", "\nfirst\n\nthen 'x'\n", "größe 😀"]
TEXTS = ["", "Done.", "Let me look: ", "  two\nlines\n", "1 < 2 and </b>", "größe 😀", "Use {braces} here.", "\n\n"]
ARGUMENTS = [
    *[
        '{"cmd": "ls -l"}',
        "{}",
        '{"a": [1, {"b": null}], "c": "}"}',
        '{ "cmd" : "echo \\"hi\\" \\\\n" }',
        '{"ü": "😀"}',
    ],
    *['{"text": "<b>{x}</b>\\n"}', '{"n": -1.5e3, "t": true}'],
]
ODD_ARGUMENTS = ['"ls"', "[1, 2]", "null", '{"cmd": "ls"', "{cmd: ls}", "{'cmd': 'ls'}", '{"cmd": "a\nb"}', '{"a": 1,}']
GAPS = ["", "\n", "\n\n", " and ", "\nthen\n"]
NAMES = ["run", "read_file", "größe"]


def hermes_replies(count: int) -> list[str]:
    """Replies with `<think>` and `<tool_call>`."""
    random = Random("hermes")
    replies = {"", "<think>", "</think>", "<tool_call>", "</tool_call>", "<think></think>", "<tool_call></tool_call>"}
    while len(replies) < count:
        replies.add(_damaged(_hermes_reply(random), random))
    return sorted(replies)


def llama_replies(count: int) -> list[str]:
    """Replies that are bare JSON calls, or are not."""
    random = Random("llama")
    replies = {"", "{", "{}", "<|python_tag|>"}
    while len(replies) < count:
        replies.add(_damaged(_llama_reply(random), random))
    return sorted(replies)


def tagged_replies(count: int) -> dict[str, list[str]]:
    """Well-formed replies whose calls are no plain JSON, by the name of vLLM's parser of their form."""
    random = Random("tagged")
    replies: dict[str, list[str]] = {}
    for name, write in _writers().items():
        opening, closing, gap = BLOCKS.get(name, ("", "", ""))
        made = [gap.join(write(random, n) for n in range(random.choice([1, 1, 2]))) for _ in range(count)]
        replies[name] = [random.choice(["", "Done: ", "größe 😀"]) + opening + text + closing for text in made]
    return replies


def malformed_replies(count: int) -> dict[str, list[str]]:
    """Such replies with something wrong: cut, or a marker or a character left out, twice, or in the wrong place."""
    random = Random("malformed")
    return {name: spoilt_replies(wellformed, count, random) for name, wellformed in tagged_replies(count).items()}


def spoilt_replies(wellformed: list[str], count: int, random: Random) -> list[str]:
    """So many replies that are none of these."""
    parts = [_parts(text) for text in wellformed]
    made: set[str] = set()
    while len(made) < count:
        made.add(_spoilt(random.choice(parts), random))
        made -= set(wellformed)
    return sorted(made)


MARKER = re.compile(
    "("
    r"</?[a-z:_]+(?:[= ][^<>]*)?>"  # tags
    r"|<[|\uff5c][^<>]*[|\uff5c]?>|<[a-z_]+\|>"  # special tokens
    r"|</?\uff5cDSML\uff5c[^<>]*>"
    r"|\n```(?:json\n)?|[{}\n]"
    ")"
)
"""What a reply is spoilt at."""


def _parts(reply: str) -> list[str]:
    return [part for part in MARKER.split(reply) if part]


def _spoilt(parts: list[str], random: Random) -> str:
    """Parts with one or two faults."""
    spoilt = list(parts)
    for _ in range(random.choice([1, 1, 2])):
        place = random.randrange(len(spoilt))
        match random.randrange(7):
            case 0:
                del spoilt[place]
            case 1:
                spoilt.insert(place, spoilt[place])
            case 2:
                other = random.randrange(len(spoilt))
                spoilt[place], spoilt[other] = spoilt[other], spoilt[place]
            case 3:
                del spoilt[place + 1 :]
            case 4:
                spoilt[place] = spoilt[place][: random.randrange(len(spoilt[place]) + 1)]
            case 5:
                spoilt.insert(place, random.choice(["and ", "<", "</", "x>", "\n"]))
            case 6:
                spoilt[place] = spoilt[place].replace("run", "other") if "run" in spoilt[place] else spoilt[place] + " "
        if not spoilt:
            break
    return "".join(spoilt)


def _writers() -> dict[str, Callable[[Random, int], str]]:
    return {
        "qwen3_coder": _xml_call,
        "glm47": _pairs_call,
        "minimax_m2": _invoke_call,
        "kimi_k2": _kimi_call,
        "deepseek_v3": _deepseek_call,
        "deepseek_v4": _dsml_call,
        "hy_v3": _hunyuan_call,
        "gemma4": _gemma_call,
    }


BAR, SPACE = "\uff5c", "\u2581"
BLOCKS = {
    "minimax_m2": ("<minimax:tool_call>\n", "\n</minimax:tool_call>", "\n"),
    "kimi_k2": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", ""),
    "deepseek_v4": (f"<{BAR}DSML{BAR}tool_calls>\n", f"\n</{BAR}DSML{BAR}tool_calls>", "\n"),
    "hy_v3": ("<tool_calls:opensource>\n", "\n</tool_calls:opensource>", "\n"),
    "deepseek_v3": (f"<{BAR}tool{SPACE}calls{SPACE}begin{BAR}>", f"<{BAR}tool{SPACE}calls{SPACE}end{BAR}>", "\n"),
}
TAGGED_SCHEMAS = {
    "cmd": {"type": "string"},
    "old": {"type": "string"},
    "count": {"type": "integer"},
    "paths": {"type": "array", "items": {"type": "string"}},
}
TAGGED_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": TAGGED_SCHEMAS}}}
    for name in ("run", "stop")
]


def _values(random: Random) -> dict[str, object]:
    choices: dict[str, list[object]] = {
        "cmd": ["ls -l", "echo \"hi\" > 'x'", "a < b && c", "größe 😀", "two\nlines", "12", "null"],
        "old": ["    indented\n  more", "</b>", "{x}"],
        "count": [0, -3, 10**12],
        "paths": [[], ["a", "b c"], ["ü"]],
    }
    return {key: random.choice(values) for key, values in choices.items() if random.random() < 0.6}


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _xml_call(random: Random, _number: int) -> str:
    parts = [f"<parameter={key}>\n{_shown(value)}\n</parameter>\n" for key, value in _values(random).items()]
    return f"<tool_call>\n<function={random.choice(['run', 'stop'])}>\n{''.join(parts)}</function>\n</tool_call>"


def _pairs_call(random: Random, _number: int) -> str:
    parts = [f"<arg_key>{key}</arg_key>\n<arg_value>{_shown(v)}</arg_value>\n" for key, v in _values(random).items()]
    return f"<tool_call>{random.choice(['run', 'stop'])}\n{''.join(parts)}</tool_call>"


def _invoke_call(random: Random, _number: int) -> str:
    parts = [f'<parameter name="{key}">{_shown(value)}</parameter>\n' for key, value in _values(random).items()]
    return f'<invoke name="{random.choice(["run", "stop"])}">\n{"".join(parts)}</invoke>'


def _kimi_call(random: Random, number: int) -> str:
    body = json.dumps(_values(random), ensure_ascii=False)
    return f"<|tool_call_begin|>functions.run:{number}<|tool_call_argument_begin|>{body}<|tool_call_end|>"


def _deepseek_call(random: Random, _number: int) -> str:
    begin, end = (f"<{BAR}tool{SPACE}call{SPACE}{word}{BAR}>" for word in ("begin", "end"))
    body = json.dumps(_values(random), ensure_ascii=False)
    return f"{begin}function<{BAR}tool{SPACE}sep{BAR}>run\n```json\n{body}\n```{end}"


def _dsml_call(random: Random, _number: int) -> str:
    token = f"{BAR}DSML{BAR}"
    flags = {key: (json.dumps(isinstance(value, str)), value) for key, value in _values(random).items()}
    parts = [
        f'<{token}parameter name="{key}" string="{flag}">{_shown(value)}</{token}parameter>'
        for key, (flag, value) in flags.items()
    ]
    name = random.choice(["run", "stop"])
    return f'<{token}invoke name="{name}">\n' + "".join(f"{part}\n" for part in parts) + f"</{token}invoke>"


def _hunyuan_call(random: Random, _number: int) -> str:
    marks = {name: f"<{name}:opensource>" for name in ("tool_call", "tool_sep", "arg_key", "arg_value")}
    ends = {name: f"</{name}:opensource>" for name in marks}
    parts = [
        f"{marks['arg_key']}{key}{ends['arg_key']}\n{marks['arg_value']}{_shown(value)}{ends['arg_value']}\n"
        for key, value in _values(random).items()
    ]
    name = random.choice(["run", "stop"])
    return f"{marks['tool_call']}{name}{marks['tool_sep']}\n{''.join(parts)}{ends['tool_call']}"


def _gemma_call(random: Random, _number: int) -> str:
    return f"<|tool_call>call:{random.choice(['run', 'stop'])}{_quoted(_values(random))}<tool_call|>"


def _quoted(value: object) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f"{key}:{_quoted(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_quoted, value)) + "]"
    return json.dumps(value)


def _hermes_reply(random: Random) -> str:
    thinking = ""
    if random.random() < 0.5:
        draft = f"<tool_call>\n{_object(random, 'arguments')}\n</tool_call>" if random.random() < 0.15 else ""
        thinking = f"<think>{random.choice(THOUGHTS)}{draft}" + random.choice(["</think>\n\n", "</think>", ""])
        if random.random() < 0.2:
            thinking = thinking.removeprefix("<think>")
    calls = [
        f"<tool_call>{random.choice(GAPS[:2])}{_object(random, 'arguments')}{random.choice(GAPS[:2])}</tool_call>"
        for _ in range(random.choice([0, 0, 1, 1, 1, 2, 3]))
    ]
    text = random.choice(TEXTS)
    return (
        thinking
        + text
        + random.choice(GAPS[:2])
        + random.choice(GAPS).join(calls)
        + random.choice(["", "", "", " end"])
    )


def _llama_reply(random: Random) -> str:
    opening = random.choice(["", "", "", "<|python_tag|>", "Sure: ", " "])
    calls = [
        _object(random, random.choice(["parameters", "parameters", "arguments"]))
        for _ in range(random.choice([0, 1, 1, 2]))
    ]
    text = random.choice(TEXTS) if not calls else ""
    return opening + text + random.choice(["; ", ";", "\n"]).join(calls) + random.choice(["", "", "", " ok"])


def _object(random: Random, key: str) -> str:
    name = f'"name": "{random.choice(NAMES)}"'
    arguments = f'"{key}": {random.choice(ARGUMENTS)}'
    match random.randrange(20):
        case 0:
            return f"{{{arguments}, {name}}}"
        case 1:
            return f'{{{name}, "{key}": {random.choice(ODD_ARGUMENTS)}}}'
        case 2:
            return f"{{{name}}}"
        case 3:
            return f"{{{arguments}}}"
        case 4:
            return f"{{{name}, {arguments}"
        case 5:
            return random.choice(
                ['{"name": 3, "arguments": {}}', '{"name": "", "arguments": {}}', "no JSON", "[]", "{}"]
            )
        case 6:
            return f'{{"id": {{"x": [1]}}, {name}, {arguments}, "more": null}}'
        case 7:
            return f"{{{name}, {arguments}, {name.replace('run', 'other')}}}"
        case 8:
            return f"{{{name}, {arguments}}} trailing"
    return f"{{{name}, {arguments}}}"


def _damaged(reply: str, random: Random) -> str:
    place = random.randrange(len(reply) + 1)
    match random.randrange(8):
        case 0:
            return reply[:place]
        case 1:
            return reply[:place] + reply[place + 1 :]
        case 2:
            return reply[:place] + reply[place : place + 1] + reply[place:]
    return reply
