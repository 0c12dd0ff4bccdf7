"""Runs many trials at once in one process and says what they cost: ours, or bare Harbor's.

Processor time and memory are this process's own; the proxy has a process of its own. The event loop's lag is how much
later than asked a timer of 10 ms fires. The yardstick is the processor time of a piece of plain Python that is always
the same, before and after: when it grows from round to round, so does all else, and it is the machine that is slower. A
bare trial is Harbor's `Trial.create` and `run` with its own verifier, with
the same agent, sandbox, task and model; its sessions are opened before the clock starts, since bare Harbor has none.
"""

import asyncio
import gc
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from agentic.proxy import ControlClient, Sampling, SessionSpec
from agentic.rollout.pacing import rare_full_collections
from agentic.rollout.records import Phase, append_record
from agentic.rollout.rollouts import RolloutRequest, make_record, run_rollout
from agentic.rollout.settings import RolloutSettings, ShellAgentSettings
from agentic.rollout.trial import TrialRunner
from agentic.sandbox.harbor_environment import IMPORT_PATH, SandboxScope, sandbox_scope

from .world import TURNS, Delays, OneImage, WaitingProvider, task_of

AGENT = ShellAgentSettings(max_turns=TURNS, max_tokens=64)
LIMITS = {"deadline_seconds": 3600.0, "start_seconds": 600.0, "grading_seconds": 600.0}
PROMPT_TOKENS, RESPONSE_TOKENS = 400, 1200
LAG_SECONDS = 0.01
YARDSTICK_STEPS = 500_000


class Order(BaseModel):
    """What one process has to do."""

    who: Literal["ours", "bare"]
    first: int
    count: int
    folder: str
    layer: str
    control_url: str
    control_key: str
    start_delay: float
    command_delay: float
    faulty: bool = False
    missing_images: int = 0


@dataclass(slots=True)
class Lag:
    """How late timers fire."""

    values: list[float]

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.values.append(max(0.0, time.perf_counter() - due))

    def p99_ms(self) -> float:
        values = sorted(self.values)
        return round(1000 * values[int(len(values) * 0.99)], 1)


async def measure(order: Order) -> dict[str, Any]:
    """Run all, measured."""
    provider = WaitingProvider(Delays(order.start_delay, order.command_delay), order.faulty)
    scope = SandboxScope(provider, OneImage(Path(order.layer), order.missing_images), "benchmark")
    async with ControlClient(order.control_url, order.control_key, timeout_seconds=600) as proxy:
        run = await (_ours if order.who == "ours" else _bare)(order, proxy, scope)
        yardsticks = [yardstick_ms()]
        gc.collect()
        before, memory = os.times(), _memory()
        began, lag = time.perf_counter(), Lag([])
        watching = asyncio.create_task(lag.watch())
        with rare_full_collections():
            rewards = await asyncio.gather(*(run(number) for number in range(order.first, order.first + order.count)))
        seconds, after = time.perf_counter() - began, os.times()
        watching.cancel()
        yardsticks.append(yardstick_ms())
    return {
        "trials": order.count,
        "seconds": seconds,
        "cpu_seconds": after.user - before.user + after.system - before.system,
        "system_seconds": after.system - before.system,
        "lag_p99_ms": lag.p99_ms(),
        "lag_max_ms": round(1000 * max(lag.values), 1),
        "most_sandboxes": provider.most,
        "sandboxes_left": len(provider.sandboxes),
        "memory_bytes": _peak() - memory,
        "yardstick_ms": round(sum(yardsticks) / len(yardsticks), 1),
        "rewards": rewards,
    }


def yardstick_ms() -> float:
    """Processor time of always the same work."""
    began, total = time.process_time(), 0
    for step in range(YARDSTICK_STEPS):
        total += step * step % 7
    return 1000 * (time.process_time() - began)


type Run = Callable[[int], Awaitable[float | None]]


async def _ours(order: Order, proxy: ControlClient, scope: SandboxScope) -> Run:
    runner = TrialRunner(order.count, scope)
    settings = RolloutSettings(
        agent=AGENT, concurrency=order.count, infra_retries=6, infra_backoff_seconds=0.1, **LIMITS
    )
    folder = Path(order.folder)

    async def run(number: int) -> float | None:
        result = await run_rollout(_request(order, number), settings, proxy, runner)
        await asyncio.to_thread(append_record, folder, make_record(result))
        return result.reward

    _warm()
    return run


def _request(order: Order, number: int) -> RolloutRequest:
    return RolloutRequest(
        rollout_id=f"r{number}",
        phase=Phase.TRAIN,
        step=1,
        task=task_of(number),
        split="train",
        task_dir=f"{order.folder}/{task_of(number)}",
        trials_dir=f"{order.folder}/trials",
        sampling=Sampling(temperature=1.0, max_tokens=64),
        prompt_tokens=PROMPT_TOKENS,
        response_tokens=RESPONSE_TOKENS,
    )


async def _bare(order: Order, proxy: ControlClient, scope: SandboxScope) -> Run:
    os.environ |= {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
    from harbor.trial.trial import Trial

    from agentic.rollout.agents.chat import ChatEndpoint
    from agentic.rollout.agents.names import AGENTS

    endpoints = {}
    for number in range(order.first, order.first + order.count):
        spec = SessionSpec(
            session_id=f"r{number}-1",
            sampling=Sampling(temperature=1.0, max_tokens=64),
            max_prompt_tokens=PROMPT_TOKENS,
            max_response_tokens=RESPONSE_TOKENS,
            max_calls=TURNS,
        )
        handle = await proxy.open(spec)
        endpoints[number] = ChatEndpoint(handle.base_url, handle.api_key)

    async def run(number: int) -> float | None:
        config = TrialConfig(
            task=TaskConfig(path=Path(order.folder) / task_of(number)),
            trial_name=f"r{number}-1",
            trials_dir=Path(order.folder) / "bare",
            agent=AgentConfig(import_path=AGENTS["shell"].import_path, kwargs=AGENT.model_dump(exclude={"kind"})),
            environment=EnvironmentConfig(import_path=IMPORT_PATH, delete=True),
        )
        with sandbox_scope(scope):
            trial = await Trial.create(config)
            trial.agent.connect(endpoints[number])
            result = await trial.run()
        return result.verifier_result.rewards["reward"] if result.verifier_result else None

    _warm()
    return run


def _warm() -> None:
    """What the first trial of a process would import, so that it is not counted."""

    import agentic.rollout.agents.shell
    import agentic.rollout.environment
    import agentic.rollout.grading.verifier
    import agentic.rollout.known_tasks  # noqa: F401


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.stdout.write(json.dumps(asyncio.run(measure(Order.model_validate_json(sys.argv[1])))) + "\n")
