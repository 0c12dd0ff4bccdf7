"""Replies such as models write, well formed and not, generated the same way each time.

Faked is the model: pieces of thinking, text and calls are put together by a grammar, then some replies are cut, lose a
character or get one twice. Nothing here knows how any parser reads them.
"""

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
