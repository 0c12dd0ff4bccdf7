"""Engines against doubles of what they talk to: vLLM's wire form, and verl's client."""

import asyncio
import importlib.util
import json
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm
from proxy_rig import until

from agentic.proxy import CallSampling, Chunk, Engine, ScriptedEngine, ScriptedReply
from agentic.proxy.engines.http import dumps, id_list
from agentic.proxy.engines.verl_client import VerlClientEngine
from agentic.proxy.engines.vllm_http import VllmHttpEngine
from agentic.proxy.errors import EngineError, EngineRefused

END = 9
SAMPLING = CallSampling(temperature=0.7, top_p=0.9, top_k=4, max_tokens=8, stop_token_ids=(END,))


@dataclass
class Output:
    """verl's TokenOutput, as far as it is read."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None = "completed"
    extra_fields: dict[str, Any] = field(default_factory=dict)


class FakeVerlClient:
    """verl's LLMServerClient with a scripted output."""

    def __init__(self, output: Output | Exception) -> None:
        self.output = output
        self.asked: list[tuple[str, list[int], dict[str, Any]]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Output:
        self.asked.append((request_id, prompt_ids, sampling_params))
        await self.may_end.wait()
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


async def collect(engine: Engine, prompt: Sequence[int] = (1, 2), sampling: CallSampling = SAMPLING) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(prompt, sampling, "s.1/0")]


@asynccontextmanager
async def vllm(ids: list[int], finish: str = "stop", **faults: Any) -> AsyncIterator[tuple[VllmHttpEngine, FakeVllm]]:
    fake = FakeVllm(ids, finish)
    for name, value in faults.items():
        setattr(fake, name, value)
    async with fake.serving():
        engine = VllmHttpEngine(fake.url, model="m", version=7)
        try:
            yield engine, fake
        finally:
            await engine.close()


async def test_vllm_gets_ids_and_every_sampling_value_and_gives_ids_logprobs_and_version() -> None:
    async with vllm([5, 6, END]) as (engine, fake):
        chunks = await collect(engine)
    assert [i for chunk in chunks for i in chunk.ids] == [5, 6, END]
    assert [p for chunk in chunks for p in chunk.logprobs] == [-0.25, -0.5, -0.75]
    assert {chunk.version for chunk in chunks} == {7}
    assert [chunk.finish for chunk in chunks] == [None, None, "stop"]
    (body,) = fake.bodies
    wanted = {"prompt": [1, 2], "temperature": 0.7, "top_p": 0.9, "top_k": 4, "max_tokens": 8, "stop_token_ids": [END]}
    assert wanted.items() <= body.items()
    assert {"min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}.items() <= body.items()
    assert "seed" not in body


async def test_a_prompt_of_a_hundred_thousand_ids_passes() -> None:
    async with vllm([END]) as (engine, _):
        chunks = await collect(engine, range(100_000))
    assert chunks[-1].finish == "stop"


async def test_vllm_reports_cut_turns_stop_tokens_and_unknown_ends() -> None:
    async with vllm([5], "length") as (engine, _):
        assert (await collect(engine))[-1].finish == "length"
    async with vllm([5], "repetition") as (engine, _):
        assert (await collect(engine))[-1].finish == "abort"
    async with vllm([5], "stop", stop_reason=5) as (engine, _):
        assert (await collect(engine))[-1].stop_reason == 5


async def test_a_logprob_that_vllm_does_not_have_is_missing_not_a_number() -> None:
    async with vllm([5, 6], "stop", logprobs=[None, -9999.0]) as (engine, _):
        assert [chunk.logprobs for chunk in await collect(engine)] == [(None,), (None,)]


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"status": 404}, "answered 404: no such model"),
        ({"prompt_ids_shown": [1]}, "1 prompt ids that are not the 2 sent"),
        ({"error_in_stream": "out of blocks"}, "out of blocks"),
        ({"cut_after": 1}, "without a finish reason|no answer"),
    ],
)
async def test_what_vllm_does_out_of_contract_is_an_engine_error(faults: dict[str, Any], message: str) -> None:
    async with vllm([5, 6], **faults) as (engine, _):
        with pytest.raises(EngineError, match=message):
            await collect(engine)


@pytest.mark.parametrize(
    ("status", "message", "overflows"),
    [
        (400, "This model's maximum context length is 8192 tokens. However, you requested 9000", True),
        (400, "The decoder prompt (length 9000) is longer than the maximum model length of 8192.", True),
        (400, "Grammar error: invalid schema", False),
        (422, "temperature must be non-negative", False),
    ],
)
async def test_a_refusal_of_vllm_is_told_from_a_failure_and_a_long_prompt_from_both(
    status: int, message: str, overflows: bool
) -> None:
    async with vllm([5], status=status, message=message) as (engine, _):
        with pytest.raises(EngineRefused, match="answered 4") as error:
            await collect(engine)
    assert error.value.is_context_overflow is overflows
    async with vllm([5], status=500) as (engine, _):
        with pytest.raises(EngineError) as failure:
            await collect(engine)
    assert not isinstance(failure.value, EngineRefused)


async def test_a_constraint_goes_to_vllm_as_it_is() -> None:
    async with vllm([END]) as (engine, fake):
        await collect(engine, sampling=SAMPLING.model_copy(update={"constraint": {"json": {"type": "object"}}}))
        await collect(engine)
    assert [body.get("structured_outputs") for body in fake.bodies] == [{"json": {"type": "object"}}, None]


async def test_an_array_of_ids_is_written_and_checked_as_a_list_is() -> None:
    prompt = array("I", range(70_000))
    async with vllm([END]) as (engine, fake):
        assert (await collect(engine, prompt))[-1].finish == "stop"
        assert fake.bodies[0]["prompt"] == list(prompt)
    for wrong in ([1, 2**40], [1, -1], [2, 1]):
        async with vllm([END], prompt_ids_shown=wrong) as (engine, _):
            with pytest.raises(EngineError, match="not the 2 sent"):
                await collect(engine, array("I", [1, 2]))


def test_writing_a_prompt_of_64k_ids_is_cheap() -> None:
    ids = array("I", (token * 7 % 150_000 for token in range(65_536)))

    def seconds(write: Callable[[], bytes]) -> float:
        begin = time.perf_counter()
        written = write()
        assert len(written) > 65_536
        return time.perf_counter() - begin

    ours = min(seconds(lambda: dumps({"prompt": id_list(ids)})) for _ in range(5))
    plain = min(seconds(lambda: json.dumps({"prompt": list(ids)}).encode()) for _ in range(5))
    assert ours < plain / 3, f"{ours * 1e3:.2f} ms against {plain * 1e3:.2f} ms with json"


async def test_an_engine_killed_in_the_middle_and_started_again_fails_one_generation_and_serves_the_next() -> None:
    first = FakeVllm([5, 6, END])
    first.delay_seconds = 0.3
    engine: VllmHttpEngine
    async with first.serving():
        engine = VllmHttpEngine(first.url, model="m")
        stream = engine.generate((1, 2), SAMPLING, "s/0")
        got = [await anext(stream)]
    rest = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"no answer|without a finish"):
        await rest
    assert [i for chunk in got for i in chunk.ids] == [5]
    with pytest.raises(EngineError, match="is the server up"):
        await collect(engine)
    again = FakeVllm([5, 6, END])
    async with again.serving(int(first.url.rpartition(":")[2])):
        assert (await collect(engine))[-1].finish == "stop"
    await engine.close()


async def test_hundreds_of_open_generations_meet_no_limit_of_connections() -> None:
    async with vllm([5, END], delay_seconds=0.5) as (engine, fake):
        await asyncio.gather(*(collect(engine) for _ in range(300)))
        assert fake.most_open == 300


async def test_a_server_that_is_down_is_an_engine_error() -> None:
    engine = VllmHttpEngine("http://127.0.0.1:9/v1")
    with pytest.raises(EngineError, match="is the server up"):
        await collect(engine)
    await engine.close()
    await engine.close()


async def test_giving_up_a_generation_hangs_up_on_vllm() -> None:
    async with vllm(list(range(100)), delay_seconds=0.01) as (engine, fake):
        async with aclosing(engine.generate((1,), SAMPLING, "s/0")) as stream:  # type: ignore[type-var]
            async for _ in stream:
                break
        await until(lambda: fake.hang_ups == 1)


async def test_verl_is_asked_under_the_session_s_name_so_prefixes_stay_cached() -> None:
    client = FakeVerlClient(Output([5, END], [-0.1, -0.2], extra_fields={"global_steps": 3, "min_global_steps": 3}))
    (chunk,) = await collect(VerlClientEngine(client))
    assert chunk == Chunk((5, END), (-0.1, -0.2), 3, "stop")
    ((request_id, prompt, params),) = client.asked
    assert (request_id, prompt) == ("s.1", [1, 2])
    assert params["logprobs"] is True
    assert (params["max_tokens"], params["stop_token_ids"], "seed" in params) == (8, [END], False)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Output([5] * 8, [-0.1] * 8), "length"),
        (Output([5] * 7 + [END], [-0.1] * 8), "stop"),
        (Output([5], [-0.1], stop_reason="aborted"), "abort"),
        (Output([], None, stop_reason="aborted"), "abort"),
        (Output([5], [-0.1], stop_reason="abort"), "abort"),
    ],
)
async def test_verl_s_end_of_a_generation_is_told_apart(output: Output, expected: str) -> None:
    (chunk,) = await collect(VerlClientEngine(FakeVerlClient(output)))
    assert chunk.finish == expected


async def test_verl_s_oldest_weights_count_and_missing_logprobs_stay_missing() -> None:
    extra = {"global_steps": 5, "min_global_steps": 4, "max_global_steps": 5}
    (chunk,) = await collect(VerlClientEngine(FakeVerlClient(Output([5], None, extra_fields=extra))))
    assert (chunk.version, chunk.logprobs) == (4, (None,))
    (chunk,) = await collect(VerlClientEngine(FakeVerlClient(Output([5], [-0.1], extra_fields={"global_steps": None}))))
    assert chunk.version == 0


async def test_verl_s_failures_are_engine_errors() -> None:
    for output in (RuntimeError("actor died"), Output([5, 6], [-0.1])):
        with pytest.raises(EngineError, match="verl's rollout server"):
            await collect(VerlClientEngine(FakeVerlClient(output)))


async def test_what_verl_will_never_do_is_a_refusal() -> None:
    too_long = RuntimeError("Prompt length 9000 exceeds the model's maximum context length 8192")
    with pytest.raises(EngineRefused) as error:
        await collect(VerlClientEngine(FakeVerlClient(too_long)))
    assert error.value.is_context_overflow
    client = FakeVerlClient(Output([5], [-0.1]))
    with pytest.raises(EngineRefused, match="no constraint"):
        await collect(VerlClientEngine(client), sampling=SAMPLING.model_copy(update={"constraint": {"regex": "a"}}))
    assert not client.asked


async def test_a_generation_that_verl_interrupts_goes_on_with_its_tokens_and_each_has_its_step() -> None:
    client = FakeVerlClient(Output([5, 6], [-0.1, -0.2], stop_reason="aborted", extra_fields={"global_steps": 3}))
    engine = VerlClientEngine(client)
    (first,) = await collect(engine)
    client.output = Output([7, END], [-0.3, -0.4], extra_fields={"global_steps": 4})
    (rest,) = await collect(engine, [1, 2, *first.ids], SAMPLING.model_copy(update={"max_tokens": 6}))
    assert [(first.version, first.finish), (rest.version, rest.finish)] == [(3, "abort"), (4, "stop")]
    assert client.asked[1][1] == [1, 2, 5, 6]
    assert client.asked[1][2]["max_tokens"] == 6


class FullyAsyncLLMServerClient(FakeVerlClient):
    """verl's client of this name: resumes by itself, and gives a range of steps without the places."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Output:
        raise AssertionError("asked to resume by itself")


async def test_verl_s_client_that_resumes_by_itself_is_asked_for_one_attempt_at_a_time() -> None:
    client = FullyAsyncLLMServerClient(Output([5], [-0.1], stop_reason="aborted", extra_fields={"global_steps": 3}))
    (chunk,) = await collect(VerlClientEngine(client))
    assert chunk == Chunk((5,), (-0.1,), 3, "abort")


async def test_what_verl_samples_of_a_generation_that_is_given_up_is_given_at_its_end() -> None:
    client = FakeVerlClient(Output([5, END], [-0.1, -0.2], extra_fields={"global_steps": 3}))
    client.may_end.clear()
    engine = VerlClientEngine(client)
    waiting = asyncio.create_task(collect(engine))
    await until(lambda: bool(client.asked))
    waiting.cancel()
    aborting = asyncio.create_task(engine.abort("s.1/0"))
    await asyncio.sleep(0.01)
    assert not aborting.done()
    client.may_end.set()
    assert await aborting == Chunk((5, END), (-0.1, -0.2), 3, "stop")
    assert await engine.abort("s.1/0") is None, "given once"
    assert await engine.abort("unknown") is None


def test_verl_s_way_to_abort_one_request_does_not_fit_this_vllm() -> None:
    """Why a generation that is given up is waited for: once this fails, VerlClientEngine can really abort."""
    verl, vllm = (Path(str(importlib.util.find_spec(name).origin)).parent for name in ("verl", "vllm"))  # type: ignore[union-attr]
    server = (verl / "workers/rollout/vllm_rollout/vllm_async_server.py").read_text("utf-8")
    assert "self.engine.output_processor.abort_requests([request_id])" in server
    processor = (vllm / "v1/engine/output_processor.py").read_text("utf-8")
    assert "def abort_requests(self, request_ids: Iterable[str], internal: bool)" in processor, "has no default"


async def test_verl_is_waited_for_within_a_limit_and_its_failures_are_nothing() -> None:
    client = FakeVerlClient(RuntimeError("actor died"))
    client.may_end.clear()
    engine = VerlClientEngine(client, patience_seconds=0.01)
    for may_end in (False, True):
        waiting = asyncio.create_task(collect(engine))
        await until(lambda: bool(client.asked))
        waiting.cancel()
        if may_end:
            client.may_end.set()
        assert await engine.abort("s.1/0") is None
        client.asked.clear()
    await engine.close()


async def test_the_scripted_engine_respects_max_tokens_and_stop_tokens() -> None:
    engine = ScriptedEngine(
        [ScriptedReply((1, END, 2)), ScriptedReply((1,) * 20), ScriptedReply((1, 2), chunk_tokens=1)]
    )
    results = [await collect(engine) for _ in range(3)]
    assert [[i for chunk in chunks for i in chunk.ids] for chunks in results] == [[1, END], [1] * 8, [1, 2]]
    assert [chunks[-1].finish for chunks in results] == ["stop", "length", "stop"]
    with pytest.raises(EngineError, match="no reply left"):
        await collect(engine)


async def test_a_script_says_sizes_delays_versions_interruptions_and_faults() -> None:
    script = ScriptedReply(
        (1, 2, 3, 4, 5, 6), version=1, later_versions=((4, 2),), chunk_sizes=(1, 2), chunk_tokens=3, delay_seconds=0.001
    )
    engine = ScriptedEngine(
        [script, replace(script, abort_after=2), replace(script, fail_after=1), replace(script, hang_after=1)]
    )
    chunks = await collect(engine)
    assert [(chunk.ids, chunk.version) for chunk in chunks] == [((1,), 1), ((2, 3), 1), ((4,), 1), ((5, 6), 2)]
    interrupted = await collect(engine)
    assert [(chunk.ids, chunk.finish) for chunk in interrupted] == [((1,), None), ((2, 3), None), ((), "abort")]
    with pytest.raises(EngineError, match="after 1 chunks"):
        await collect(engine)
    stream = engine.generate((1, 2), SAMPLING, "s/0")
    assert (await anext(stream)).ids == (1,)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.05)


async def test_cancelling_a_scripted_generation_ends_it() -> None:
    task = asyncio.create_task(collect(ScriptedEngine([ScriptedReply((1,), delay_seconds=60)])))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("prompt", [[5], [7, 8], list(range(3000))], ids=["one id", "two", "many"])
@pytest.mark.parametrize("compact", [True, False], ids=["compact", "spaced"])
async def test_the_echoed_prompt_is_known_by_its_bytes_or_by_its_ids(prompt: list[int], compact: bool) -> None:
    async with FakeVllm([5, 7, 8]).serving() as vllm:
        vllm.is_compact = compact
        engine = VllmHttpEngine(vllm.url)
        ids = [token async for chunk in engine.generate(array("I", prompt), SAMPLING, "s/0") for token in chunk.ids]
        await engine.close()
    assert ids == [5, 7, 8]
