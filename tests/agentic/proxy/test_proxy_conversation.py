"""Recognising conversations: by messages, by text, by the id of an earlier reply; and what that costs."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from proxy_rig import a_spec, ids_of, says, text_of
from proxy_tokens import TINY_TEMPLATE, write_model_folder

from agentic.proxy import MemoryJournal, ProxySettings, ScriptedEngine, SessionSpec, make_renderer
from agentic.proxy.conversation import (
    CallArguments,
    CallStart,
    KnownConversations,
    Message,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    conversation_keys,
    join_deltas,
    message_deltas,
)
from agentic.proxy.dialects.base import CallReply, CallRequest
from agentic.proxy.gateway import Gateway
from agentic.proxy.metrics import ProxyMetrics
from agentic.proxy.session import Arrival
from agentic.proxy.sessions import Sessions

texts = st.sampled_from(["", "a", "b", "<think>x</think>a", " a "])
messages = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(["user", "assistant", "tool"]),
        content=texts,
        tool_calls=st.sampled_from(
            [(), (ToolCall("1", "run", '{"b": 1, "a": 2}'),), (ToolCall("2", "run", '{"a":2,"b":1}'),)]
        ),
    ),
    max_size=5,
)
tools = st.sampled_from([None, [], [{"type": "function", "function": {"name": "run"}}]])


@given(st.lists(st.tuples(messages, tools, st.booleans()), max_size=8))
def test_known_conversations_have_the_keys_that_hashing_all_of_them_gives(
    asked: list[tuple[list[Message], Any, bool]],
) -> None:
    known = KnownConversations()
    for conversation, schemas, is_remembered in asked:
        keys = known.keys(conversation, schemas)
        assert keys == conversation_keys(conversation, schemas)
        if is_remembered:
            known.remember(conversation, schemas, keys)
            assert known.keys(conversation, schemas) == keys


def test_recognising_a_long_conversation_again_costs_less_than_hashing_it() -> None:
    history = [Message("user" if n % 2 else "assistant", f"{n} " + "x" * 20_000) for n in range(100)]
    known = KnownConversations()
    known.remember(history, None, known.keys(history, None))
    copies = [replace(message, content=message.content[:-1] + "x") for message in history]
    hashing, comparing = _seconds(conversation_keys, copies), _seconds(known.keys, copies)
    assert comparing < hashing / 3


def _seconds(keys: Any, conversation: list[Message]) -> float:
    spent = []
    for _ in range(3):
        started = time.perf_counter()
        keys(conversation, None)
        spent.append(time.perf_counter() - started)
    return min(spent)


def test_deltas_put_together_are_the_message() -> None:
    message = Message(
        "assistant", "text", (ToolCall("", "run", "{}"), ToolCall("", "stop", '{"a": 1}')), reasoning="why"
    )
    assert join_deltas(message_deltas(message)) == message
    pieces = [ReasoningDelta("a"), TextDelta("b"), CallStart(0, "f"), CallArguments(0, "{"), CallArguments(0, "}")]
    assert join_deltas(pieces) == Message("assistant", "b", (ToolCall("", "f", "{}"),), reasoning="a")


class Rim:
    """A gateway without HTTP, on a scripted engine."""

    def __init__(self, folder: Path, script: Any, journal: MemoryJournal) -> None:
        self.engine = ScriptedEngine(script)
        settings, metrics = ProxySettings(), ProxyMetrics()
        self.sessions = Sessions(self.engine, journal, settings, metrics)
        self.gateway = Gateway(self.engine, make_renderer(folder), self.sessions, settings, metrics)
        self._count = 0

    async def open(self, spec: SessionSpec) -> None:
        await self.sessions.start()
        await self.sessions.open(spec)

    async def ask(self, **fields: Any) -> CallReply:
        self._count += 1
        base: dict[str, Any] = {"messages": (), "tools": (), "may_call_tools": True, "max_tokens": None, "asked": {}}
        request = CallRequest(**base | fields)
        async with self.gateway.call("rollout-1", Arrival(str(self._count), None, 0), request) as reply:
            return await reply.result()


async def test_a_text_completion_goes_on_from_held_tokens(tiny_folder: Path) -> None:
    rim = Rim(tiny_folder, [says(" world"), says(" again"), says("!")], MemoryJournal())
    await rim.open(a_spec())
    first = await rim.ask(prompt="hello")
    await rim.ask(prompt="hello" + first.message.content + " and")
    await rim.ask(prompt=ids_of("other"))
    sealed = await rim.sessions.seal("rollout-1")
    prompts = [call.prompt_ids for call in rim.engine.received]
    assert prompts[0] == ids_of("hello")
    assert prompts[1] == ids_of("hello world<|im_end|> and")
    assert prompts[2] == ids_of("other")
    assert [sum(t.response_mask) for t in sealed.trajectories] == [14, 2]


async def test_a_stored_reply_is_continued_by_its_id_also_after_a_restart(tiny_folder: Path) -> None:
    journal = MemoryJournal()
    rim = Rim(tiny_folder, [says("one"), says("two")], journal)
    await rim.open(a_spec())
    question = (Message("system", "be brief"), Message("user", "a"))
    first = await rim.ask(messages=question, lead=1, is_stored=True)
    second = await rim.ask(
        messages=(Message("system", "be brief"), Message("user", "b")),
        lead=1,
        continues=first.reply_id,
        is_stored=True,
    )
    await rim.sessions.stop()
    later = Rim(tiny_folder, [says("three")], journal)
    await later.open(a_spec())
    await later.ask(messages=(Message("system", "be long"), Message("user", "c")), lead=1, continues=second.reply_id)
    sealed = await later.sessions.seal("rollout-1")
    (prompt,) = [call.prompt_ids for call in later.engine.received]
    turns = "user\na<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
    assert text_of(prompt).startswith(f"<|im_start|>system\nbe long<|im_end|>\n<|im_start|>{turns}")
    assert len(sealed.trajectories) == 2, "another system text is another conversation"
    assert sealed.complete


async def test_the_second_turn_by_id_only_appends(tiny_folder: Path) -> None:
    rim = Rim(tiny_folder, [says("one"), says("two")], MemoryJournal())
    await rim.open(a_spec())
    first = await rim.ask(messages=(Message("user", "a"),), is_stored=True)
    await rim.ask(messages=(Message("user", "b"),), continues=first.reply_id)
    (only,) = (await rim.sessions.seal("rollout-1")).trajectories
    assert sum(only.response_mask) == len(ids_of("one<|im_end|>two<|im_end|>"))


async def test_counting_tokens_starts_nothing(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, TINY_TEMPLATE)
    rim = Rim(folder, [], MemoryJournal())
    await rim.open(a_spec())
    request = CallRequest((Message("user", "hi"),), (), False, None, {})
    assert await rim.gateway.count("rollout-1", request) == len(
        ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    )
    assert (await rim.sessions.seal("rollout-1")).calls == 0
