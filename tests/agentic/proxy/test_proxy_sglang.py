"""The SGLang engine against a double of its server."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_sglang import FakeSglang
from fake_vllm import FakeVllm
from proxy_rig import a_spec, until, user

from agentic.proxy import ProxyServer, ProxySettings, Sampling, make_renderer
from agentic.proxy.engines.base import Chunk
from agentic.proxy.engines.kinds import find_kind, make_http_engine
from agentic.proxy.engines.sglang_http import SglangHttpEngine
from agentic.proxy.engines.vllm_http import VllmHttpEngine
from agentic.proxy.errors import EngineError, EngineRefused
from agentic.proxy.models import CallSampling

END = 9
SAMPLING = CallSampling(temperature=0.7, max_tokens=8, stop_token_ids=(END,))


async def collect(
    engine: SglangHttpEngine, prompt: Sequence[int] = (1, 2), sampling: CallSampling = SAMPLING
) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(prompt, sampling, "s.1/0")]


@asynccontextmanager
async def sglang(ids: list[int], **attributes: Any) -> AsyncIterator[tuple[SglangHttpEngine, FakeSglang]]:
    fake = FakeSglang(ids)
    for name, value in attributes.items():
        setattr(fake, name, value)
    async with fake.serving():
        engine = SglangHttpEngine(fake.url, version=7)
        try:
            yield engine, fake
        finally:
            await engine.close()


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("says_output_ids", [False, True])
async def test_sglang_gets_ids_and_gives_ids_and_logprobs_in_both_of_its_forms(
    incremental: bool, says_output_ids: bool
) -> None:
    async with sglang([5, 6, END], incremental=incremental, says_output_ids=says_output_ids) as (engine, fake):
        chunks = await collect(engine)
    assert ids_of(chunks) == [5, 6, END]
    assert [value for chunk in chunks for value in chunk.logprobs] == [-1.25, -1.5, -2.25]
    assert [(chunk.version, chunk.finish) for chunk in chunks] == [(7, None), (7, None), (7, "stop")]
    assert chunks[-1].stop_reason is None
    (body,) = fake.bodies
    assert (body["input_ids"], body["return_logprob"], body["stream"]) == ([1, 2], True, True)
    wanted = {"temperature": 0.7, "max_new_tokens": 8, "stop_token_ids": [END], "min_p": 0, "repetition_penalty": 1}
    assert wanted.items() <= body["sampling_params"].items()


async def test_weights_updated_in_the_middle_show_in_the_version_of_each_token_and_never_fall() -> None:
    async with sglang([5, 6, 8, END], weight_version="8", versions={2: 9, 3: 3}) as (engine, _):
        chunks = await collect(engine)
    assert [chunk.version for chunk in chunks] == [8, 8, 9, 9]
    async with sglang([5, END]) as (engine, _):
        engine.use_version(11)
        assert {chunk.version for chunk in await collect(engine)} == {11}


async def test_a_generation_that_sglang_aborts_for_new_weights_can_be_asked_for_again_where_it_was() -> None:
    async with sglang([5, 6, 8, END], weight_version="1", abort_at=2) as (engine, fake):
        first = await collect(engine)
        fake.weight_version = "2"
        rest = await collect(engine, [1, 2, *ids_of(first)], SAMPLING.model_copy(update={"max_tokens": 6}))
    assert (ids_of(first), first[-1].finish) == ([5, 6], "abort")
    assert (ids_of(rest), rest[-1].finish, {chunk.version for chunk in rest}) == ([8, END], "stop", {2})
    assert len({body["rid"] for body in fake.bodies}) == 2


async def test_a_cut_turn_is_told_apart() -> None:
    async with sglang([5, 6, END]) as (engine, _):
        chunks = await collect(engine, sampling=SAMPLING.model_copy(update={"max_tokens": 2}))
    assert (ids_of(chunks), chunks[-1].finish) == ([5, 6], "length")


async def test_giving_a_generation_up_aborts_it_by_its_name_once() -> None:
    async with sglang(list(range(100)), delay_seconds=0.01) as (engine, fake):
        async with aclosing(engine.generate((1,), SAMPLING.model_copy(update={"max_tokens": 99}), "s/0")) as stream:  # type: ignore[type-var]
            async for _ in stream:
                break
        await engine.abort("s/0")
        await engine.abort("s/0")
        await engine.abort("unknown")
        await until(lambda: fake.hang_ups == 1)
        assert fake.aborted == [fake.bodies[0]["rid"]]


async def test_a_pause_and_a_seal_do_not_wait_for_a_server_that_does_not_answer_their_abort(tiny_folder: Path) -> None:
    async with sglang(list(range(60)), delay_seconds=0.2) as (engine, fake), aiohttp.ClientSession() as http:
        fake.answers_aborts = False
        server = ProxyServer(ProxySettings(), engine, make_renderer(tiny_folder))
        await server.start()
        handle = await server.open(a_spec())
        headers, body = {"Authorization": f"Bearer {handle.api_key}"}, {"messages": [user("hi")]}
        asking = asyncio.create_task(http.post(f"{handle.base_url}/chat/completions", json=body, headers=headers))
        await until(lambda: len(fake.bodies) == 1)
        async with asyncio.timeout(10):
            assert (await server.pause()).interrupted == 1
        await server.resume()
        await until(lambda: len(fake.bodies) == 2)
        async with asyncio.timeout(10):
            assert (await server.seal("rollout-1")).cut == {"sealed": 1}
        assert (await asking).status == 410
        await server.stop()


async def test_a_constraint_goes_in_sglang_s_words() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    for constraint, expected in [
        ({"json": schema}, ("json_schema", schema)),
        ({"json_object": True}, ("json_schema", {"type": "object"})),
        ({"structural_tag": '{"format": 1}'}, ("structural_tag", {"format": 1})),
    ]:
        async with sglang([END]) as (engine, fake):
            await collect(engine, sampling=SAMPLING.model_copy(update={"constraint": constraint}))
        name, value = expected
        assert json.loads(fake.bodies[0]["sampling_params"][name]) == value


async def test_sampling_whose_logprobs_sglang_does_not_give_is_refused() -> None:
    async with sglang([END]) as (engine, fake):
        with pytest.raises(EngineRefused, match=r"top_p 0\.9"):
            await collect(engine, sampling=SAMPLING.model_copy(update={"top_p": 0.9}))
        greedy = SAMPLING.model_copy(update={"top_p": 0.9, "temperature": 0})
        assert ids_of(await collect(engine, sampling=greedy)) == [END]
    assert len(fake.bodies) == 1


async def test_a_session_whose_sampling_no_client_chose_is_not_the_client_s_fault(tiny_folder: Path) -> None:
    async with sglang([END]) as (engine, _), aiohttp.ClientSession() as http:
        server = ProxyServer(ProxySettings(), engine, make_renderer(tiny_folder))
        await server.start()
        handle = await server.open(a_spec(sampling=Sampling(temperature=1.0, top_p=0.9, max_tokens=8)))
        headers, body = {"Authorization": f"Bearer {handle.api_key}"}, {"messages": [user("hi")]}
        async with http.post(f"{handle.base_url}/chat/completions", json=body, headers=headers) as response:
            assert response.status == 400
        assert (await server.seal("rollout-1")).cut == {"engine": 1}
        await server.stop()


@pytest.mark.parametrize(
    ("message", "overflows"),
    [
        ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", True),
        ("out of memory", False),
    ],
)
async def test_a_prompt_longer_than_the_context_is_told_apart(message: str, overflows: bool) -> None:
    async with sglang([END], refusal=message) as (engine, _):
        with pytest.raises(EngineError) as error:
            await collect(engine)
    assert isinstance(error.value, EngineRefused) is overflows
    assert getattr(error.value, "is_context_overflow", False) is overflows


async def test_what_sglang_does_out_of_contract_is_an_engine_error() -> None:
    async with sglang([5, END], wrong_logprobs=1) as (engine, _):
        with pytest.raises(EngineError, match="logprobs for"):
            await collect(engine)
    async with sglang([5, END], finish=None) as (engine, _):
        with pytest.raises(EngineError, match="without a finish reason"):
            await collect(engine)
    bad = {"type": "abort", "message": "scheduler died", "status_code": 500}
    async with sglang([5, END], finish=bad) as (engine, _):
        with pytest.raises(EngineError, match="scheduler died"):
            await collect(engine)


async def test_the_kind_of_a_server_is_found_by_asking_it() -> None:
    async with FakeSglang([END]).serving() as sglang_server, FakeVllm([END]).serving() as vllm_server:
        assert await asyncio.to_thread(find_kind, sglang_server.url) == "sglang"
        assert await asyncio.to_thread(find_kind, f"{vllm_server.url}/v1/") == "vllm"
    with pytest.raises(EngineError, match="start the engine first"):
        find_kind("http://127.0.0.1:9")
    assert isinstance(make_http_engine("http://127.0.0.1:9", "vllm"), VllmHttpEngine)
    assert isinstance(make_http_engine("http://127.0.0.1:9", "sglang"), SglangHttpEngine)
