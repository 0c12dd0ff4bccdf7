"""Replies with thinking in front, as each family writes it and spoilt, generated the same way each time.

Faked is the model: what it thinks is put before the well-formed replies of `reply_corpus`, so that whatever is read
differently is read so because of the thinking. gpt-oss has messages in channels instead. Nothing here knows how any
parser reads them.
"""

from dataclasses import dataclass
from random import Random

from reply_corpus import TEXTS, THOUGHTS, spoilt_replies, tagged_replies


@dataclass(frozen=True)
class Thinker:
    """How a family thinks."""

    calls: str
    """The name under which `reply_corpus` writes its calls."""
    opening: str = "<think>"
    closing: str = "</think>"
    is_opened: bool = True
    """Whether its prompt has written the opening already."""


THINKERS = {
    "qwen3 and qwen3_coder": Thinker("qwen3_coder"),
    "nemotron_v3 and qwen3_coder": Thinker("qwen3_coder"),
    "glm45 and glm47": Thinker("glm47"),
    "poolside_v1": Thinker("glm47"),
    "minimax_m2": Thinker("minimax_m2"),
    "kimi_k2": Thinker("kimi_k2"),
    "deepseek_r1 and deepseek_v3": Thinker("deepseek_v3"),
    "deepseek_v4": Thinker("deepseek_v4"),
    "hy_v3": Thinker("hy_v3", "<think:opensource>", "</think:opensource>"),
    "gemma4": Thinker("gemma4", "<|channel>thought\n", "<channel|>", is_opened=False),
}
"""Families by the names of vLLM's parsers of their thinking and of their calls."""


def thinking_replies(count: int) -> dict[str, list[str]]:
    """Replies by the name of the parsers."""
    random = Random("thinking")
    after = tagged_replies(60)
    replies: dict[str, list[str]] = {}
    for name, thinker in THINKERS.items():
        made: set[str] = set()
        while len(made) < count:
            made.add(_thought(thinker, after[thinker.calls], random) + _said(after[thinker.calls], random))
        replies[name] = sorted(made)
    return replies


def _thought(thinker: Thinker, calls: list[str], random: Random) -> str:
    opening, closing = thinker.opening, thinker.closing
    written = "" if thinker.is_opened and random.random() < 0.7 else opening
    text = random.choice(THOUGHTS) + random.choice(["", "", "", "more", f" {random.choice(calls)} "])
    end = random.choice([closing, closing, f"{closing}\n\n", f"\n{closing}\n"])
    match random.randrange(12):
        case 0:
            end = ""  # never closed
        case 1:
            end += closing  # twice
        case 2:
            text += opening + "again"
        case 3:
            written = "first " + written
        case 4:
            end += f"said{opening}thought again{closing}"
        case 5:
            end = end.replace(closing, closing[:-1])
        case 6:
            written = written[1:]
        case 7:
            written = "\n " + written
    return written + text + end


def _said(calls: list[str], random: Random) -> str:
    return random.choice([*TEXTS[:6], *random.sample(calls, 6)])


def harmony_replies(count: int) -> list[str]:
    """Turns of gpt-oss, half of them malformed: text after the header that the prompt has opened."""
    random = Random("harmony")
    wellformed: set[str] = set()
    while len(wellformed) < count // 2:
        wellformed.add(_turn(random))
    return sorted(wellformed) + [_one_turn(text) for text in spoilt_replies(sorted(wellformed), count // 2, random)]


def _turn(random: Random) -> str:
    messages = [f"<|channel|>analysis<|message|>{random.choice(THOUGHTS)}" for _ in range(random.choice([0, 1, 1, 2]))]
    if random.random() < 0.3:
        messages.append(f"<|channel|>commentary<|message|>{random.choice(TEXTS)}")
    if random.random() < 0.5:
        messages.append(_harmony_call(random))
        end = "<|call|>"
    else:
        messages.append(f"<|channel|>final<|message|>{random.choice(TEXTS)}")
        end = "<|return|>"
    return "<|end|><|start|>assistant".join(messages) + end


def _harmony_call(random: Random) -> str:
    name = random.choice(["functions.run", "functions.run", "functions.stop", "run", "browser.search"])
    arguments = random.choice(['{"cmd": "ls -l"}', "{}", '{"cmd": "a\\nb", "count": 3}', '{"cmd": "ls"', "ls", "[1]"])
    kind = random.choice([" <|constrain|>json", " json", ""])
    header = random.choice([f"<|channel|>commentary to={name}{kind}", f" to={name}<|channel|>commentary{kind}"])
    return f"{header}<|message|>{arguments}"


def _one_turn(text: str) -> str:
    """Up to the first token at which an engine stops."""
    ends = [place + len(stop) for stop in ("<|return|>", "<|call|>") if (place := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
