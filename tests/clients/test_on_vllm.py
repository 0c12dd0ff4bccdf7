"""Real clients on a real engine: vLLM on this machine's CPU, with log-probabilities checked against the weights.

SDKs and mini-swe-agent get SmolLM2-135M; agents whose first prompt alone is longer than its context get a random model
with 64k of it, for one turn.
"""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import client_runs
import pytest
from client_runs import Run
from client_stage import SESSION, Stage, staged
from client_teacher import largest_difference
from client_vllm import context_tokens_of, vllm_server, write_random_model, write_smollm2

from agentic.proxy import Sampling, SessionSpec
from agentic.proxy.engines.vllm_http import VllmHttpEngine

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1500)]

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


@asynccontextmanager
async def on_vllm(folder: Path, model: Path, url: str, max_tokens: int) -> AsyncIterator[Stage]:
    context = context_tokens_of(model)
    spec = SessionSpec(
        session_id=SESSION,
        sampling=Sampling(temperature=1.0, max_tokens=max_tokens),
        max_prompt_tokens=context // 2,
        max_response_tokens=context // 2,
        max_calls=20,
    )
    async with staged(folder, VllmHttpEngine(url), model, spec) as stage:
        yield stage


async def check(stage: Stage, model: Path, tell: Tell) -> None:
    """The capture is whole, and its log-probabilities are those of the weights."""
    sealed = await stage.seal()
    difference, compared = largest_difference(model, sealed.trajectories, temperature=1.0)
    tell(f"{compared} log-probabilities of {sealed.calls} calls, largest difference {difference:.2e}")
    assert compared == sealed.sampled_tokens > 0
    assert difference < BOUND


QUESTIONS = ["Write a haiku about rain.", "And one about snow."]


async def test_sdks_and_mini_swe_agent_on_smollm2(tmp_path: Path, smollm2: Path, tell: Tell) -> None:
    def runs(base_url: str, key: str) -> Iterator[Run]:
        for style in ("openai-chat", "openai-responses", "anthropic-messages"):
            yield client_runs.sdk(style, base_url, key, QUESTIONS)
        yield client_runs.mini_swe_agent(base_url, key)  # ends by itself after three replies without a call

    async with (
        vllm_server(smollm2, tmp_path) as url,
        on_vllm(tmp_path / "stage", smollm2, url, max_tokens=24) as stage,
    ):
        for run in runs(stage.base_url, stage.key):
            await stage.play(run, seconds=400)
        await check(stage, smollm2, tell)


LARGE: dict[str, Callable[[str, str], Run]] = {
    "codex": client_runs.codex,
    "claude-code": client_runs.claude_code,
    "opencode": client_runs.opencode,
}


async def test_agents_with_large_prompts_take_a_turn_on_a_random_model(
    tmp_path: Path, random_model: Path, tell: Tell
) -> None:
    async with vllm_server(random_model, tmp_path) as url:
        for name, client in LARGE.items():
            async with on_vllm(tmp_path / name, random_model, url, max_tokens=200) as stage:
                await stage.play(client(stage.base_url, stage.key), seconds=400)
                assert max(map(len, stage.witness.prompts)) > 4000
                await check(stage, random_model, tell)
