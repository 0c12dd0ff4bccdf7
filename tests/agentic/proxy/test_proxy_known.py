"""Conversations that are known again: the same keys as from hashing everything."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.proxy.conversation import KnownConversations, Message, conversation_keys

TOOLS = [None, [{"type": "function", "function": {"name": "run"}}]]
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant"]),
    content=st.sampled_from(["a", " a", "<think>x</think>a", "b"]),
)
asked = st.lists(st.tuples(st.lists(messages, max_size=6), st.integers(0, 6), st.booleans(), st.sampled_from(TOOLS)))


@settings(deadline=None)
@given(asked)
def test_keys_are_those_of_the_whole_conversation_whatever_was_asked_before(
    requests: list[tuple[list[Message], int, bool, list[dict[str, object]] | None]],
) -> None:
    known = KnownConversations()
    earlier: list[Message] = []
    for new, kept, is_remembered, tools in requests:
        conversation = [*earlier[:kept], *new]
        keys = known.keys(conversation, tools)
        assert keys == conversation_keys(conversation, tools)
        if is_remembered:
            known.remember(conversation, tools, keys)
        earlier = conversation
