"""Anthropic's SDK, unmodified and through real HTTP."""

from pathlib import Path
from typing import Any

import anthropic
import pytest
from sdk_stage import PARAMETERS, SdkStage, calls, says, sdk_stage

TOOL: Any = {"name": "run", "description": "runs it", "input_schema": PARAMETERS}
TURNS = [calls("ls", text="I look.", thought="first"), calls("cat a", "cat b", thought="more"), says("done", "so")]
SAMPLED = [turn + "<|im_end|>" for turn in TURNS]


def client_of(stage: SdkStage) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=stage.root_url, api_key=stage.handle.api_key, max_retries=0)


async def turn_of(client: anthropic.AsyncAnthropic, messages: list[Any], streamed: bool, thinking: Any) -> Any:
    asked: Any = {
        "model": "policy",
        "max_tokens": 400,
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": messages,
        "tools": [TOOL],
        "thinking": thinking,
        "metadata": {"user_id": "me"},
    }
    if not streamed:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        return await stream.get_final_message()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("thinking", ["adaptive", "disabled"])
@pytest.mark.parametrize("drops_thinking", [False, True])
async def test_messages_with_tools_become_one_path(
    tmp_path: Path, streamed: bool, thinking: str, drops_thinking: bool
) -> None:
    async with sdk_stage(tmp_path, TURNS) as stage, client_of(stage) as client:
        messages: list[Any] = [{"role": "user", "content": "go"}]
        for number in range(3):
            message = await turn_of(client, messages, streamed, {"type": thinking})
            blocks = [block.to_dict() for block in message.content]
            assert ("thinking" in [block["type"] for block in blocks]) == (thinking == "adaptive")
            kept = [block for block in blocks if not (drops_thinking and block["type"] == "thinking")]
            results: list[Any] = [
                {
                    "type": "tool_result",
                    "tool_use_id": block["id"],
                    "content": [{"type": "text", "text": f"r {number}"}],
                }
                for block in blocks
                if block["type"] == "tool_use"
            ]
            messages += [{"role": "assistant", "content": kept}, {"role": "user", "content": results}]
        assert (message.stop_reason, message.content[-1].text) == ("end_turn", "done")
        assert await stage.sampled_in_one_path() == SAMPLED


async def test_tokens_are_counted_as_the_engine_gets_them(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, [says("yes")]) as stage, client_of(stage) as client:
        asked: Any = {"model": "policy", "system": "be brief", "messages": [{"role": "user", "content": "go"}]}
        counted = await client.messages.count_tokens(tools=[TOOL], **asked)
        message = await client.messages.create(max_tokens=50, tools=[TOOL], **asked)
        assert counted.input_tokens == message.usage.input_tokens == len(stage.engine.received[0].prompt_ids)
        sealed = await stage.seal()
        assert sealed.calls == 1


async def test_a_system_text_among_the_messages_is_shown_to_the_model(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, [says("yes")]) as stage, client_of(stage) as client:
        messages: list[Any] = [{"role": "user", "content": "go"}, {"role": "system", "content": "calc.py changed"}]
        await client.messages.create(model="policy", max_tokens=50, messages=messages)
        assert "calc.py changed" in stage.prompts[0]


async def test_refusals_are_the_sdk_s_own_errors(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, [], max_prompt_tokens=60) as stage, client_of(stage) as client:
        long: Any = [{"role": "user", "content": "x" * 200}]
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as caught:
            await client.messages.create(model="policy", max_tokens=50, messages=long)
        assert caught.value.type == "invalid_request_error"
        image: Any = [{"type": "image", "source": {"type": "url", "url": "http://x/a.png"}}]
        with pytest.raises(anthropic.BadRequestError, match="image"):
            await client.messages.create(model="policy", max_tokens=50, messages=[{"role": "user", "content": image}])
        with pytest.raises(anthropic.AuthenticationError):
            await client.copy(api_key="wrong").messages.create(model="policy", max_tokens=50, messages=long)
