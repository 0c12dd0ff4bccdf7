"""Which templates are local, and that a window of messages then gives what the whole conversation gives."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_rig import ids_of
from proxy_tokens import (
    DROPS_THINKING_TEMPLATE,
    QWEN_LIKE_TEMPLATE,
    SMOLLM2_TEMPLATE,
    TINY_TEMPLATE,
    make_tokenizer,
)

from agentic.proxy.conversation import Message, ToolCall
from agentic.proxy.renderers import HeldTurn
from agentic.proxy.renderers.jinja import ChatTemplate
from agentic.proxy.renderers.template import TemplateRenderer
from agentic.proxy.renderers.tokens import TextTokenizer, TokenizerFiles

LOCAL = {
    "tiny": TINY_TEMPLATE,
    "smollm2": SMOLLM2_TEMPLATE,
    "qwen-like": QWEN_LIKE_TEMPLATE,
    "drops thinking of earlier turns": DROPS_THINKING_TEMPLATE,
}
TURN = "{{ m.role }}: {{ m.content }}<|im_end|>\n"
LOOP = "{% for m in messages %}" + TURN + "{% endfor %}"
NOT_LOCAL = {
    "looks at all messages before": "{% if messages|length > 3 %}long {% endif %}" + LOOP,
    "loops over some": LOOP.replace("in messages", "in messages[1:]"),
    "loops twice": LOOP + LOOP,
    "counts": LOOP.replace("{{ m.role }}", "{{ loop.index }}"),
    "asks for the length": LOOP.replace("{{ m.role }}", "{{ loop.length }}"),
    "alternates": LOOP.replace("{{ m.role }}", "{% if loop.index0 % 2 %}odd{% endif %}"),
    "looks two back": LOOP.replace("{{ m.role }}", "{{ messages[loop.index0 - 2].role }}"),
    "looks at the end from within": LOOP.replace("{{ m.role }}", "{{ messages[-1].role }}"),
    "carries on": "{% set ns = namespace(n=0) %}" + LOOP.replace("{{ m.role }}", "{% set ns.n = ns.n + 1 %}{{ ns.n }}"),
    "renames": "{% set messages = messages[1:] %}" + LOOP,
    "hides messages in a macro": "{% macro all() %}{{ messages }}{% endmacro %}" + LOOP,
    "hands messages on": LOOP.replace("{{ m.role }}", "{% for other in messages %}x{% endfor %}"),
    "filters": LOOP.replace("in messages", "in messages if m.role != 'tool'"),
    "looks at a place found in an inner loop": LOOP.replace(
        "{{ m.role }}", "{% for c in m.content %}{{ messages[loop.index0 - 1].role }}{% endfor %}"
    ),
}

words = st.text(st.sampled_from("ab <think></think>\n"), max_size=12)
old_messages = st.lists(
    st.builds(Message, role=st.sampled_from(["user", "tool", "assistant", "system"]), content=words), max_size=9
)
new_messages = st.lists(
    st.builds(Message, role=st.sampled_from(["user", "tool"]), content=words), min_size=1, max_size=3
)
calls = st.lists(st.builds(ToolCall, id=st.just("c"), name=st.just("run"), arguments=st.just('{"a": 1}')), max_size=2)

LOOKS_FURTHER = "{% if messages|length < 0 %}{% endif %}"
"""Says nothing, and makes a template render whole."""


@cache
def renderer_of(template: str) -> TemplateRenderer:
    return TemplateRenderer(TextTokenizer(make_tokenizer()), TokenizerFiles(template, {"eos_token": "<|im_end|>"}))


@pytest.mark.parametrize("template", LOCAL.values(), ids=LOCAL)
def test_templates_that_look_at_neighbours_only_are_local(template: str) -> None:
    assert ChatTemplate(template, {}).is_local


@pytest.mark.parametrize("template", NOT_LOCAL.values(), ids=NOT_LOCAL)
def test_templates_that_look_further_are_not(template: str) -> None:
    assert not ChatTemplate(template, {}).is_local


def test_the_measure_of_a_window_is_a_template_that_is_rendered_whole() -> None:
    assert not any(ChatTemplate(LOOKS_FURTHER + template, {}).is_local for template in LOCAL.values())


@pytest.mark.parametrize("template", LOCAL.values(), ids=LOCAL)
@settings(deadline=None)
@given(first=words, old=old_messages, reply=words, made=calls, new=new_messages, cut=st.booleans())
def test_a_window_bridges_as_the_whole_conversation_does(
    template: str,
    first: str,
    old: list[Message],
    reply: str,
    made: list[ToolCall],
    new: list[Message],
    cut: bool,
) -> None:
    sampled = Message("assistant", reply, tool_calls=tuple(made))
    messages = [Message("user", first), *old, sampled, *new]
    held = HeldTurn([1], ids_of(reply + ("" if cut else "<|im_end|>")), len(messages) - len(new))
    windowed, whole = renderer_of(template), renderer_of(LOOKS_FURTHER + template)
    assert windowed.bridge(held, messages, None) == whole.bridge(held, messages, None)
