"""LiteLLM, unmodified and through real HTTP, by each API that it can translate to."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sdk_stage import PARAMETERS, SdkStage, calls, says, sdk_stage

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or importing it asks a host for prices

import litellm

pytestmark = pytest.mark.filterwarnings("ignore:.*using the `ReadOnly` qualifier:UserWarning")
"""LiteLLM's own types make pydantic warn; everything else that it warns of would fail a test."""

TOOL: Any = {"type": "function", "function": {"name": "run", "description": "runs it", "parameters": PARAMETERS}}
TURNS = [calls("ls", text="I look.", thought="first"), calls("cat a", "cat b", thought="more"), says("done", "so")]
SAMPLED = [turn + "<|im_end|>" for turn in TURNS]


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    """LiteLLM keeps its connections; they belong to the test's event loop."""
    yield
    await litellm.close_litellm_async_clients()
    litellm.in_memory_llm_clients_cache.flush_cache()


async def turn_of(stage: SdkStage, provider: str, messages: list[Any], streamed: bool) -> Any:
    asked: dict[str, Any] = {
        "model": f"{provider}/policy",
        "messages": messages,
        "tools": [TOOL],
        "max_tokens": 400,
        "api_key": stage.handle.api_key,
        "api_base": stage.root_url if provider == "anthropic" else stage.handle.base_url,
        "num_retries": 0,
    }
    if not streamed:
        whole = await litellm.acompletion(**asked)
        return whole.choices[0].message
    chunks = [chunk async for chunk in await litellm.acompletion(stream=True, **asked)]
    built = litellm.stream_chunk_builder(chunks)
    assert built is not None
    return built.choices[0].message


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_litellm_s_conversation_with_tools_is_one_path(tmp_path: Path, provider: str, streamed: bool) -> None:
    async with sdk_stage(tmp_path, TURNS) as stage:
        messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}]
        for number in range(3):
            message = await turn_of(stage, provider, messages, streamed)
            messages.append(message.model_dump())
            for call in message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"result {number}"})
        assert message.content == "done"
        assert await stage.sampled_in_one_path() == SAMPLED


async def test_litellm_speaks_responses(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, TURNS) as stage:
        flat = {"type": "function", "strict": False} | TOOL["function"]
        given: list[Any] = [{"role": "user", "content": "go"}]
        for number in range(3):
            response = await litellm.aresponses(
                model="openai/policy",
                input=given,
                tools=[flat],
                store=False,
                api_key=stage.handle.api_key,
                api_base=stage.handle.base_url,
            )
            items = [item.model_dump(exclude_none=True) for item in response.output]
            made = [item for item in items if item["type"] == "function_call"]
            given += items
            given += [
                {"type": "function_call_output", "call_id": item["call_id"], "output": f"result {number}"}
                for item in made
            ]
        assert items[-1]["content"][0]["text"] == "done"
        assert await stage.sampled_in_one_path() == SAMPLED


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_litellm_knows_a_prompt_that_is_too_long(tmp_path: Path, provider: str) -> None:
    async with sdk_stage(tmp_path, [], max_prompt_tokens=60) as stage:
        with pytest.raises(litellm.ContextWindowExceededError):
            await turn_of(stage, provider, [{"role": "user", "content": "x" * 200}], streamed=False)
