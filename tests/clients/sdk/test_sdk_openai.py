"""OpenAI's SDK, unmodified and through real HTTP: chat completions, Responses, completions."""

from pathlib import Path
from typing import Any

import openai
import pytest
from sdk_stage import PARAMETERS, SdkStage, calls, says, sdk_stage

TOOL: Any = {"type": "function", "function": {"name": "run", "description": "runs it", "parameters": PARAMETERS}}
FLAT_TOOL: Any = {
    "type": "function",
    "name": "run",
    "description": "runs it",
    "parameters": PARAMETERS,
    "strict": False,
}
TURNS = [calls("ls", text="I look.", thought="first"), calls("cat a", "cat b", thought="more"), says("done", "so")]
SAMPLED = [turn + "<|im_end|>" for turn in TURNS]


def client_of(stage: SdkStage) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=stage.handle.base_url, api_key=stage.handle.api_key, max_retries=0)


async def chat_turn(client: openai.AsyncOpenAI, messages: list[Any], streamed: bool) -> Any:
    if not streamed:
        whole = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
        return whole.choices[0]
    async with client.chat.completions.stream(model="policy", messages=messages, tools=[TOOL]) as stream:
        return (await stream.get_final_completion()).choices[0]


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat_completions_with_tools_become_one_path(tmp_path: Path, streamed: bool) -> None:
    async with sdk_stage(tmp_path, TURNS) as stage, client_of(stage) as client:
        messages: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}]
        for number in range(3):
            choice = await chat_turn(client, messages, streamed)
            messages.append(choice.message.to_dict())
            for call in choice.message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"result {number}"})
        assert (choice.finish_reason, choice.message.content) == ("stop", "done")
        assert await stage.sampled_in_one_path() == SAMPLED


async def test_chat_gives_logprobs_and_usage_of_what_was_sampled(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, [says("yes")]) as stage, client_of(stage) as client:
        messages: list[Any] = [{"role": "user", "content": "go"}]
        whole = await client.chat.completions.create(model="policy", messages=messages, logprobs=True)
        shown = whole.choices[0].logprobs
        assert shown is not None
        assert "".join(entry.token for entry in shown.content or ()) == says("yes") + "<|im_end|>"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == len(stage.engine.received[0].prompt_ids)


async def test_responses_chain_by_id(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, TURNS) as stage, client_of(stage) as client:
        given: Any = "go"
        previous = None
        for number in range(3):
            response = await client.responses.create(
                model="policy", input=given, tools=[FLAT_TOOL], instructions="be brief", previous_response_id=previous
            )
            previous = response.id
            made = [item for item in response.output if item.type == "function_call"]
            given = [
                {"type": "function_call_output", "call_id": item.call_id, "output": f"result {number}"} for item in made
            ]
        assert response.output_text == "done"
        assert await stage.sampled_in_one_path() == SAMPLED


@pytest.mark.parametrize("form", ["items", "without ids", "references"])
async def test_responses_that_are_streamed_and_given_back_become_one_path(tmp_path: Path, form: str) -> None:
    async with sdk_stage(tmp_path, TURNS) as stage, client_of(stage) as client:
        given: list[Any] = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "go"}]
        for number in range(3):
            async with client.responses.stream(
                model="policy", input=given, tools=[FLAT_TOOL], store=form == "references"
            ) as stream:
                response = await stream.get_final_response()
            for item in response.output:
                given.append(as_given_back(item.to_dict(), form))
            for item in response.output:
                if item.type == "function_call":
                    output = {"call_id": item.call_id, "output": f"result {number}"}
                    given.append({"type": "function_call_output"} | output)
        assert response.output_text == "done"
        assert await stage.sampled_in_one_path() == SAMPLED


def as_given_back(item: dict[str, Any], form: str) -> dict[str, Any]:
    if form == "references":
        return {"type": "item_reference", "id": item["id"]}
    kept = {name: value for name, value in item.items() if name not in ("parsed", "parsed_arguments")}
    if form == "without ids":
        kept.pop("id")
    return kept


async def test_an_unknown_previous_response_is_refused(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, TURNS) as stage, client_of(stage) as client:
        for wrong in ("resp_" + "0" * 32, "resp_other"):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="policy", input="go", previous_response_id=wrong)
            assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize("streamed", [False, True])
async def test_completions_go_on_from_what_is_held(tmp_path: Path, streamed: bool) -> None:
    async with sdk_stage(tmp_path, ["one", "two"]) as stage, client_of(stage) as client:
        prompt = "go: "
        for word in ("one", "two"):
            if streamed:
                chunks = await client.completions.create(model="policy", prompt=prompt, stream=True)
                text = "".join([choice.text async for chunk in chunks for choice in chunk.choices])
            else:
                text = (await client.completions.create(model="policy", prompt=prompt)).choices[0].text
            assert text == word
            prompt += f"{text}<|im_end|> and "
        assert await stage.sampled_in_one_path() == ["one<|im_end|>", "two<|im_end|>"]


async def test_completions_take_token_ids(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, ["one", "two"]) as stage, client_of(stage) as client:
        prompt = [5, 6, 7]
        for _ in range(2):
            extra = {"return_token_ids": True}
            whole = await client.completions.create(model="policy", prompt=prompt, logprobs=0, extra_body=extra)
            prompt = [*prompt, *whole.choices[0].to_dict()["token_ids"], 8]
        assert await stage.sampled_in_one_path() == ["one<|im_end|>", "two<|im_end|>"]


async def test_refusals_are_the_sdk_s_own_errors(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, [], max_prompt_tokens=60) as stage, client_of(stage) as client:
        long: list[Any] = [{"role": "user", "content": "x" * 200}]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="policy", messages=long)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="policy", input="x" * 200, stream=True)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="policy", messages=long, n=2)
        assert caught.value.param == "n"
        with pytest.raises(openai.AuthenticationError):
            await client.copy(api_key="wrong").chat.completions.create(model="policy", messages=long)


async def test_models_lists_the_session_s_model(tmp_path: Path) -> None:
    async with sdk_stage(tmp_path, []) as stage, client_of(stage) as client:
        assert [model.id async for model in client.models.list()] == ["policy"]
