"""The proxy in front of a real vLLM server on the CPU, with SmolLM2-135M: what it records is what the model says.

Teacher-forcing: a session's recorded ids are given to the server again, which scores each of them (`prompt_logprobs`).
The recorded logprobs were computed token by token, these in one pass, so they agree up to rounding alone.
"""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from agentic.models.settings import SmolLM2Model
from agentic.models.smollm2 import convert_smollm2
from agentic.proxy import CallSampling, ProxyServer, ProxySettings, Sampling, SessionSpec, make_renderer
from agentic.proxy.conversation import Message
from agentic.proxy.engines.kinds import make_http_engine
from agentic.proxy.errors import EngineRefused
from agentic.proxy.models import Trajectory
from agentic.training.engine_server import serve
from agentic.training.settings import TrainSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

LARGEST_DIFFERENCE = 1e-3
"""In nats, for one token, in float32. Measured with one thread: 2.3e-5 over 192 tokens, 4.8e-6 on average."""
CONTEXT_TOKENS = 2048
PARAMETERS = {"type": "object", "properties": {"cmd": {"enum": ["ls", "pwd"]}}, "required": ["cmd"]}
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": PARAMETERS}}]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "smollm2"
    folder.mkdir()
    convert_smollm2(SmolLM2Model(), folder)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine_url(model_dir: Path) -> AsyncIterator[str]:
    half = CONTEXT_TOKENS // 2
    train = TrainSettings(
        device="cpu", gpus_per_node=1, dtype="float32", max_prompt_tokens=half, max_response_tokens=half
    )
    log = model_dir.parent / "vllm.log"
    async with serve(model_dir, train, run_id="proxy-e2e", workspace=model_dir.parent, threads=1, log=log) as url:
        yield url


async def chat(client: aiohttp.ClientSession, url: str, key: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    async with client.post(f"{url}/chat/completions", json={"messages": messages}, headers=headers) as response:
        body: dict[str, Any] = await response.json()
        assert response.status == 200, body
        return body


async def scored(client: aiohttp.ClientSession, url: str, ids: list[int]) -> list[float | None]:
    """The logprob of each id after those before it, in one pass."""
    body = {"model": "policy", "prompt": ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
    async with client.post(f"{url}/v1/completions", json=body) as response:
        (choice,) = (await response.json())["choices"]
    given = choice["prompt_logprobs"]
    return [None if entry is None else entry[str(token)]["logprob"] for token, entry in zip(ids, given, strict=True)]


async def differences(client: aiohttp.ClientSession, url: str, trajectory: Trajectory) -> list[float]:
    ids = [*trajectory.prompt_ids, *trajectory.response_ids]
    forced = (await scored(client, url, ids))[len(trajectory.prompt_ids) :]
    rows = zip(trajectory.response_mask, trajectory.response_logprobs, forced, strict=True)
    return [abs(recorded - value) for mask, recorded, value in rows if mask and value is not None]


async def test_recorded_logprobs_are_those_of_the_same_ids_scored_by_the_server(
    engine_url: str, model_dir: Path, record_property: Callable[[str, object], None]
) -> None:
    engine = make_http_engine(engine_url, "auto", "policy", version=3)
    server = ProxyServer(ProxySettings(), engine, make_renderer(str(model_dir)))
    await server.start()
    try:
        sampling = Sampling(temperature=1.0, max_tokens=64, seed=7)
        spec = SessionSpec(
            session_id="forced", sampling=sampling, max_prompt_tokens=512, max_response_tokens=1024, max_calls=5
        )
        handle = await server.open(spec)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Name three colours, then count to five."}]
        async with aiohttp.ClientSession() as client:
            for question in ("And three animals?", "Which of them <|im_end|> is largest?", "Thanks."):
                body = await chat(client, handle.base_url, handle.api_key, messages)
                messages += [body["choices"][0]["message"], {"role": "user", "content": question}]
            sealed = await server.seal("forced")
            assert (sealed.complete, sealed.calls, len(sealed.trajectories)) == (True, 3, 1)
            (trajectory,) = sealed.trajectories
            found = await differences(client, engine_url, trajectory)
        assert set(trajectory.versions) <= {-1, 3}
        assert len(found) == sealed.sampled_tokens
        record_property("largest_difference_nats", max(found))
        record_property("mean_difference_nats", sum(found) / len(found))
        assert max(found) < LARGEST_DIFFERENCE
    finally:
        await server.stop()


async def test_a_forced_call_is_a_call_with_arguments_of_the_schema(engine_url: str, model_dir: Path) -> None:
    renderer = make_renderer(str(model_dir))
    engine = make_http_engine(engine_url, "vllm", "policy")
    constraint = renderer.tool_constraint(TOOLS, False)
    sampling = CallSampling(
        temperature=1.0, max_tokens=64, stop_token_ids=renderer.stop_token_ids, constraint=constraint
    )
    prompt = renderer.render([Message("user", "List the files.")], TOOLS)
    try:
        ids = [token async for chunk in engine.generate(prompt, sampling, "s/0") for token in chunk.ids]
    finally:
        await engine.close()
    (call,) = renderer.parse(ids, TOOLS).tool_calls
    assert call.name == "run"
    assert json.loads(call.arguments)["cmd"] in ("ls", "pwd")


async def test_a_prompt_beyond_the_context_is_refused_as_such(engine_url: str) -> None:
    engine = make_http_engine(engine_url, "vllm", "policy")
    try:
        for length, wanted in ((CONTEXT_TOKENS + 10, 1), (CONTEXT_TOKENS - 10, 100)):
            with pytest.raises(EngineRefused) as error:
                await anext(engine.generate([5] * length, CallSampling(temperature=1.0, max_tokens=wanted), "s/0"))
            assert error.value.is_context_overflow, str(error.value)
    finally:
        await engine.close()
