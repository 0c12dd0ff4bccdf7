"""Why a reply with thinking is read differently by vLLM's parsers: rules, explained in docs/proxy-parsers.md.

As in `malformed_rules`, a rule looks at what both made of a reply, and the first that holds counts.
"""

import re

from malformed_rules import Reply, Rule

_MARK = re.compile(r"</?think>|<\|?channel\|?>|\s+")
_CALL = re.compile(r"<tool_calls?>|<function=|<minimax:tool_call>|<invoke |<\|tool_call|<\uff5c(?:tool|DSML)")
LABEL = "thought"
"""What Gemma writes after the mark."""


def _bare(text: str) -> str:
    """Without marks of thinking and white space."""
    return _MARK.sub("", text)


def _shown(reply: Reply) -> str:
    return _bare(reply[1] + reply[0])


def marker_again(_text: str, ours: Reply, theirs: Reply) -> bool:
    """A mark of thinking where none is expected: one shows it, the other does not."""
    parts = [(_bare(our).removesuffix(LABEL), _bare(their)) for our, their in zip(ours[:2], theirs[:2], strict=True)]
    return ours[2] == theirs[2] and all(our == their.removesuffix(LABEL) for our, their in parts)


def thinking_again(_text: str, ours: Reply, theirs: Reply) -> bool:
    """A mark within the text opens thinking for them."""
    own = (_shown(ours), _shown(ours).replace(LABEL, "", 1))
    same = ours[2] == theirs[2] and any(sorted(text) == sorted(_shown(theirs)) for text in own)
    return same and len(_bare(theirs[1])) >= len(_bare(ours[1]))


def draft(_text: str, ours: Reply, theirs: Reply) -> bool:
    """They take what is written within the thinking for a call."""
    return len(theirs[2]) > len(ours[2]) and bool(_CALL.search(ours[1])) and not _CALL.search(theirs[1])


def unended_thinking(_text: str, ours: Reply, theirs: Reply) -> bool:
    return bool(ours[2]) and not theirs[2] and not theirs[0] and theirs[1].startswith(ours[1])


def text_before(_text: str, ours: Reply, theirs: Reply) -> bool:
    """They drop what comes before the mark that opens thinking."""
    return len(_shown(theirs)) < len(_shown(ours)) and _shown(ours).endswith(_shown(theirs))


RULES: dict[str, Rule] = {
    "marker again": marker_again,
    "thinking again": thinking_again,
    "draft": draft,
    "unended thinking": unended_thinking,
    "text before thinking": text_before,
}


def refused(_text: str, _ours: Reply, theirs: Reply) -> bool:
    """They take nothing of it."""
    return theirs[0].startswith("refused: ")


def no_object(_text: str, ours: Reply, theirs: Reply) -> bool:
    return len(theirs[2]) > len(ours[2]) and any(isinstance(value, str | list) for _, value in theirs[2])


def messages_joined(_text: str, ours: Reply, theirs: Reply) -> bool:
    """Messages of one kind, with a line break between them or without."""
    return ours[2] == theirs[2] and (_bare(ours[0]), _bare(ours[1])) == (_bare(theirs[0]), _bare(theirs[1]))


def next_message(_text: str, _ours: Reply, theirs: Reply) -> bool:
    """A special token of Harmony's is text, or part of a name, for them."""
    return any("<|" in text for text in (*theirs[:2], *(name for name, _ in theirs[2])))


def left_out(_text: str, ours: Reply, theirs: Reply) -> bool:
    """What is addressed to nobody known, or has no channel, is in neither text nor thinking."""
    return ours[2] == theirs[2] and len(_shown(theirs)) < len(_shown(ours))


HARMONY_RULES: dict[str, Rule] = {
    "refused turn": refused,
    "no object": no_object,
    "message within a message": next_message,
    "messages joined": messages_joined,
    "unknown address": left_out,
}
