"""Real clients on a real engine: vLLM on this machine's CPU, with log-probabilities checked against the weights.

SDKs and mini-swe-agent get SmolLM2-135M; agents whose first prompt alone is longer than its context get a random model
with 64k of it, for one turn. Sessions of several samplings show of which distribution the recorded values are.
"""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import client_runs
import pytest
import pytest_asyncio
from client_runs import Run
from client_stage import SESSION, Stage, staged
from client_teacher import largest_difference
from client_vllm import context_tokens_of, vllm_server, write_random_model, write_smollm2

from agentic.proxy import Sampling, SealedSession, SessionSpec
from agentic.proxy.engines.vllm_http import VllmHttpEngine

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1500), pytest.mark.asyncio(loop_scope="module")]

BOUND = 1e-4
"""Largest difference allowed between a recorded log-probability and the same recomputed; both are float32."""


type Tell = Callable[[str], None]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Tell:
    """Prints what was measured, also when the test passes."""

    def line(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{request.node.name}: {text}\n")

    return line


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_smollm2(tmp_path_factory.mktemp("models") / "smollm2")


@pytest.fixture(scope="module")
def random_model(smollm2: Path) -> Path:
    return write_random_model(smollm2.with_name("random"), smollm2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def smollm2_url(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with vllm_server(smollm2, tmp_path_factory.mktemp("vllm")) as url:
        yield url


@asynccontextmanager
async def on_vllm(folder: Path, model: Path, url: str, sampling: Sampling) -> AsyncIterator[Stage]:
    context = context_tokens_of(model)
    spec = SessionSpec(
        session_id=SESSION,
        sampling=sampling,
        max_prompt_tokens=context // 2,
        max_response_tokens=context // 2,
        max_calls=20,
    )
    async with staged(folder, VllmHttpEngine(url), model, spec) as stage:
        yield stage


async def check(stage: Stage, model: Path, sampling: Sampling, tell: Tell) -> SealedSession:
    """The capture is whole, and its log-probabilities are those of the distribution that was sampled from."""
    sealed = await stage.seal()
    difference, compared = largest_difference(model, sealed.trajectories, sampling)
    tell(f"{compared} log-probabilities of {sealed.calls} calls, largest difference {difference:.2e}")
    assert compared == sealed.sampled_tokens > 0
    assert difference < BOUND
    return sealed


QUESTIONS = ["Write a haiku about rain.", "And one about snow."]


async def test_sdks_and_mini_swe_agent_on_smollm2(tmp_path: Path, smollm2: Path, smollm2_url: str, tell: Tell) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=24)

    def runs(base_url: str, key: str) -> Iterator[Run]:
        for style in ("openai-chat", "openai-responses", "anthropic-messages"):
            yield client_runs.sdk(style, base_url, key, QUESTIONS)
        yield client_runs.mini_swe_agent(base_url, key)  # ends by itself after three replies without a call

    async with on_vllm(tmp_path / "stage", smollm2, smollm2_url, sampling) as stage:
        for run in runs(stage.base_url, stage.key):
            await stage.play(run, seconds=400)
        await check(stage, smollm2, sampling, tell)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.6, max_tokens=48),
        Sampling(temperature=1.5, max_tokens=48),
        Sampling(temperature=0.8, top_p=0.9, top_k=40, max_tokens=48),
        Sampling(temperature=0.0, max_tokens=48),
    ],
    ids=["colder", "hotter", "top_p and top_k", "greedy"],
)
async def test_recorded_log_probabilities_are_those_of_the_distribution_sampled_from(
    tmp_path: Path, smollm2: Path, smollm2_url: str, sampling: Sampling, tell: Tell
) -> None:
    async with on_vllm(tmp_path / "stage", smollm2, smollm2_url, sampling) as stage:
        await stage.play(client_runs.sdk("openai-chat", stage.base_url, stage.key, QUESTIONS), seconds=400)
        sealed = await check(stage, smollm2, sampling, tell)
    unchanged = Sampling(temperature=1.0, max_tokens=48)
    before, _ = largest_difference(smollm2, sealed.trajectories, unchanged)
    tell(f"to the model's own distribution: {before:.2e}")
    assert (before > 1000 * BOUND) is (sampling.temperature > 0), "these samplings can be told from none"


LARGE: dict[str, Callable[[str, str], Run]] = {
    "codex": client_runs.codex,
    "claude-code": client_runs.claude_code,
    "opencode": client_runs.opencode,
}


async def test_agents_with_large_prompts_take_a_turn_on_a_random_model(
    tmp_path: Path, random_model: Path, tell: Tell
) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=200)
    async with vllm_server(random_model, tmp_path) as url:
        for name, client in LARGE.items():
            async with on_vllm(tmp_path / name, random_model, url, sampling) as stage:
                await stage.play(client(stage.base_url, stage.key), seconds=400)
                assert max(map(len, stage.witness.prompts)) > 4000
                await check(stage, random_model, sampling, tell)
