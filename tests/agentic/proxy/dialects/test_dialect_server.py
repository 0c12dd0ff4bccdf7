"""All APIs on one server: constraints reach the engine, conversations change their API, refusals keep its form."""

import json
from pathlib import Path
from typing import Any

import pytest
from dialect_writing import chat_body, messages_body, responses_body
from proxy_rig import Rig, a_spec, ids_of, running, says, text_of
from proxy_tokens import QWEN_LIKE_TEMPLATE, write_model_folder

from agentic.proxy import Sampling, SessionHandle
from agentic.proxy.conversation import Message, ToolCall

BODIES: dict[str, Any] = {
    "/chat/completions": chat_body,
    "/messages": lambda conversation: messages_body(conversation) | {"max_tokens": 400},
    "/responses": lambda conversation: responses_body(conversation) | {"store": True},
}
ASKED = [Message("system", "be brief"), Message("user", "go")]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def hermes(*commands: str) -> str:
    blocks = [{"name": "run", "arguments": {"cmd": command}} for command in commands]
    return "\n".join(f"<tool_call>\n{json.dumps(block)}\n</tool_call>" for block in blocks)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model_folder(tmp_path / "tools", QWEN_LIKE_TEMPLATE)


async def post(rig: Rig, handle: SessionHandle, path: str, body: Any, key: str | None = None) -> tuple[int, Any]:
    headers = {"x-api-key": key or handle.api_key}
    async with rig.http.post(handle.base_url + path, json=body, headers=headers) as response:
        return response.status, json.loads(await response.text())


def roomy() -> Any:
    return a_spec(sampling=Sampling(temperature=1, max_tokens=400), max_prompt_tokens=9000, max_response_tokens=9000)


def shaped(path: str) -> dict[str, Any]:
    flat = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    return {
        "/chat/completions": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        },
        "/messages": {"output_config": {"format": flat}},
        "/responses": {"text": {"format": flat}},
        "/completions": {"response_format": flat},
    }[path]


@pytest.mark.parametrize("path", [*BODIES, "/completions"])
async def test_a_format_reaches_the_engine_as_a_constraint(folder: Path, path: str) -> None:
    async with running(folder, [says('{"a": 1}')]) as rig:
        handle = await rig.server.open(roomy())
        body = BODIES[path](ASKED) if path in BODIES else {"prompt": "go"}
        status, _ = await post(rig, handle, path, body | shaped(path))
        assert status == 200
        assert rig.engine.received[0].sampling.constraint == {"json": SCHEMA}
        assert (await rig.server.seal("rollout-1")).constrained_calls == 1


def forced(path: str, one: bool) -> dict[str, Any]:
    if path == "/messages":
        return {"tool_choice": {"type": "tool", "name": "run"} if one else {"type": "any"}}
    named = (
        {"type": "function", "name": "run"}
        if path == "/responses"
        else {"type": "function", "function": {"name": "run"}}
    )
    return {"tool_choice": named if one else "required"}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("one", [False, True])
async def test_a_forced_call_reaches_the_engine_as_a_constraint(folder: Path, path: str, one: bool) -> None:
    async with running(folder, [says(hermes("ls"))]) as rig:
        handle = await rig.server.open(roomy())
        status, _ = await post(rig, handle, path, BODIES[path](ASKED) | forced(path, one))
        assert status == 200
        constraint = rig.engine.received[0].sampling.constraint
        assert constraint is not None
        held = json.dumps(constraint)
        assert ("run" in held, "read" in held) == (True, not one)


def given_back(path: str, body: Any, answer: Any, result: str) -> Any:
    """The next request of a client of this API."""
    if path == "/chat/completions":
        message = answer["choices"][0]["message"]
        results: list[Any] = [
            {"role": "tool", "tool_call_id": call["id"], "content": result} for call in message["tool_calls"]
        ]
        return body | {"messages": [*body["messages"], message, *results]}
    if path == "/messages":
        blocks = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": result}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]
        turn = {"role": "assistant", "content": answer["content"]}
        return body | {"messages": [*body["messages"], turn, {"role": "user", "content": blocks}]}
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": item["call_id"], "output": result} for item in calls]
    return body | {"input": outputs, "previous_response_id": answer["id"]}


def one_call(path: str) -> dict[str, Any]:
    if path == "/messages":
        return {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    return {"parallel_tool_calls": False}


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_takes_one_call_at_a_time_stays_on_its_path(folder: Path, path: str) -> None:
    sampled = hermes("ls", "pwd")
    async with running(folder, [says(sampled), says("done")]) as rig:
        handle = await rig.server.open(roomy())
        body = BODIES[path](ASKED) | one_call(path)
        _, answer = await post(rig, handle, path, body)
        status, _ = await post(rig, handle, path, given_back(path, body, answer, "ok"))
        assert status == 200
        second = text_of(rig.engine.received[1].prompt_ids)
        assert (second.count("<tool_response>"), sampled in second) == (1, True)
        sealed = await rig.server.seal("rollout-1")
    assert len(sealed.trajectories) == 1


async def test_a_conversation_goes_on_where_another_api_left_it(folder: Path) -> None:
    replies = [f"I look.\n{hermes('ls', 'pwd')}", hermes("cat a"), "done"]
    conversation = list(ASKED)
    async with running(folder, [says(text) for text in replies]) as rig:
        handle = await rig.server.open(roomy())
        for number, path in enumerate(BODIES):
            status, _ = await post(rig, handle, path, BODIES[path](conversation))
            assert status == 200
            commands = [["ls", "pwd"], ["cat a"], []][number]
            calls = tuple(ToolCall(f"c{number}{n}", "run", json.dumps({"cmd": c})) for n, c in enumerate(commands))
            conversation.append(Message("assistant", "I look." if number == 0 else "", calls))
            conversation += [Message("tool", "ok", tool_call_id=call.id) for call in calls]
        sealed = await rig.server.seal("rollout-1")
    (only,) = sealed.trajectories
    sampled = sum(only.response_mask)
    assert sampled == sum(len(ids_of(text + "<|im_end|>")) for text in replies) == sealed.sampled_tokens


async def test_a_chain_of_responses_has_its_own_instructions_each_time(folder: Path) -> None:
    async with running(folder, [says("one"), says("two")]) as rig:
        handle = await rig.server.open(roomy())
        _, first = await post(rig, handle, "/responses", {"input": "a", "instructions": "old rules"})
        chained = {"input": "b", "instructions": "new rules", "previous_response_id": first["id"]}
        await post(rig, handle, "/responses", chained)
        second = text_of(rig.engine.received[1].prompt_ids)
    assert ("new rules" in second, "old rules" in second, "one" in second) == (True, False, True)


HALF = '<tool_call>\n{"name": "run", "arguments": {"cmd": "\\ud83d"}}\n</tool_call>'


@pytest.mark.parametrize("path", BODIES)
async def test_a_model_may_write_half_a_character(folder: Path, path: str) -> None:
    async with running(folder, [says(HALF), says("done")]) as rig:
        handle = await rig.server.open(roomy())
        body = BODIES[path](ASKED)
        _, answer = await post(rig, handle, path, body)
        status, _ = await post(rig, handle, path, given_back(path, body, answer, "ok"))
        assert status == 200
        assert HALF in text_of(rig.engine.received[1].prompt_ids)
        sealed = await rig.server.seal("rollout-1")
    assert (len(sealed.trajectories), sealed.complete) == (1, True)


@pytest.mark.parametrize("path", BODIES)
async def test_a_model_may_write_half_a_character_into_a_stream(folder: Path, path: str) -> None:
    async with running(folder, [says(HALF)]) as rig:
        handle = await rig.server.open(roomy())
        body = BODIES[path](ASKED) | {"stream": True}
        async with rig.http.post(handle.base_url + path, json=body, headers={"x-api-key": handle.api_key}) as response:
            text = await response.text()
        assert (response.status, "run" in text, '"error":{' in text) == (200, True, False)
        sealed = await rig.server.seal("rollout-1")
    assert sealed.complete


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/messages", "/messages/count_tokens", "/responses", "/completions"]
)
async def test_a_wrong_key_is_refused_in_the_api_s_own_form(folder: Path, path: str) -> None:
    async with running(folder, []) as rig:
        handle = await rig.server.open(roomy())
        status, body = await post(rig, handle, path, {}, key="wrong")
    assert status == 401
    assert body["error"]["type"] == "authentication_error"
    assert ("param" in body["error"]) != path.startswith("/messages")


async def test_what_is_left_out_or_not_followed_is_counted(folder: Path) -> None:
    async with running(folder, [says("a"), says("b")]) as rig:
        handle = await rig.server.open(roomy())
        body = messages_body(ASKED)
        body["tools"].append({"type": "web_search_20250305", "name": "web_search"})
        await post(rig, handle, "/messages", body | {"temperature": 0.5, "stop_sequences": ["x"]})
        body = responses_body(ASKED)
        body["tools"].append({"type": "web_search"})
        await post(rig, handle, "/responses", body)
        sealed = await rig.server.seal("rollout-1")
    counted = {"stop": 1, "temperature": 1, "tools.web_search": 1, "tools.web_search_20250305": 1}
    assert sealed.overridden == counted
