"""The sampling of one step beside verl's own `ToolAgentLoop`: same prompt, replies, turns, model time and tool time.

Real are both loops, the proxy and Harbor's trials, all in this process and in front of one double of verl's server
client, whose replies are scripted and take the same time for both. A tool call of verl's loop and a command of our
agent wait equally long; starting sandboxes and grading, which verl's loop has none of, wait for nothing here, so that
what is left is what the loops themselves take. What a step does besides sampling (log-probabilities, the update) is the
same code for both, so the ratio here bounds a step's ratio from above.
"""

import asyncio
import logging
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentic.proxy import ProxyServer, ProxySettings, Sampling
from agentic.proxy.engines.verl_client import VerlClientEngine
from agentic.rollout.export import agent_loop_outputs, training_rows
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest, run_rollout
from agentic.rollout.scripted_model import END, START, TEMPLATE, byte_renderer
from agentic.rollout.settings import RolloutSettings
from agentic.rollout.trial import TrialRunner
from agentic.sandbox.base import Command, ExecResult, Sandbox, SandboxSpec
from agentic.sandbox.harbor_environment import SandboxScope

from .worker import AGENT, LIMITS, PROMPT_TOKENS, RESPONSE_TOKENS
from .world import FIX, LOOK, SUBMIT, TASK, TURNS, Delays, OneImage, WaitingProvider, WaitingSandbox, write_world

REPLIES = tuple(f"```bash\n{command}\n```" for command in (LOOK, FIX, SUBMIT))
SAMPLES, ROUNDS = 64, 3
REPLY_SECONDS, TOOL_SECONDS = 2.0, 1.0
INSTRUCTION = "Fix calc.txt."

type Loop = Callable[[int], Awaitable[list[Any]]]


class Client:
    """verl's client of its servers, with a scripted policy that takes its time."""

    def __init__(self, tokenizer: Any) -> None:
        self._ids = [[*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id] for reply in REPLIES]
        self._end = tokenizer.eos_token_id
        self.sampled = 0

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_options: Any) -> Any:
        """The reply of the turn that the prompt has reached."""
        from verl.workers.rollout.replica import TokenOutput

        await asyncio.sleep(REPLY_SECONDS)
        ids = self._ids[list(prompt_ids).count(self._end) // 2]
        self.sampled += len(ids)
        return TokenOutput(
            token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields={"global_steps": 1}
        )


class ToolTime(WaitingProvider):
    """Sandboxes in which the agent's commands wait, and nothing else does."""

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        sandbox = _ToolTimeSandbox(self, spec)
        self.sandboxes[f"{spec.run_id}/{spec.sandbox_id}"] = sandbox
        return sandbox


class _ToolTimeSandbox(WaitingSandbox):
    async def exec(self, command: Command, **options: Any) -> ExecResult:
        if command in (LOOK, FIX):
            await asyncio.sleep(TOOL_SECONDS)
        return await super().exec(command, **options)


async def compare() -> dict[str, Any]:
    """Both loops in turns: seconds of one step's sampling, and what of the sampled tokens trains."""
    logging.disable(logging.CRITICAL)
    rows = {}
    with tempfile.TemporaryDirectory(prefix="side-by-side-") as name:
        folder = Path(name)
        renderer = byte_renderer(folder / "model")
        tokenizer = _tokenizer(folder / "model")
        clients = {"verl ToolAgentLoop": Client(tokenizer), "ours": Client(tokenizer)}
        proxy = ProxyServer(ProxySettings(), VerlClientEngine(clients["ours"]), renderer)
        await proxy.start()
        try:
            loops = {
                "verl ToolAgentLoop": _verls(clients["verl ToolAgentLoop"], tokenizer),
                "ours": _ours(folder, write_world(folder), proxy),
            }
            measured: dict[str, list[dict[str, float]]] = {name: [] for name in loops}
            for number in range(ROUNDS + 1):  # The first one warms up.
                for loop, run in loops.items():
                    measured[loop].append(await _step(run, clients[loop], number * SAMPLES))
        finally:
            await proxy.stop()
    for loop, steps in measured.items():
        rows[loop] = _row(loop, steps[1:])
    seconds = {loop: row["median_step_seconds"] for loop, row in rows.items()}
    return {
        "samples": SAMPLES,
        "turns": TURNS,
        "reply_seconds": REPLY_SECONDS,
        "tool_seconds": TOOL_SECONDS,
        "rows": list(rows.values()),
        "step_ratio": round(seconds["ours"] / seconds["verl ToolAgentLoop"], 3),
    }


async def _step(run: Loop, client: Client, first: int) -> dict[str, float]:
    client.sampled, began, cpu = 0, time.perf_counter(), time.process_time()
    outputs = await asyncio.gather(*(run(first + number) for number in range(SAMPLES)))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    trained = sum(sum(output.response_mask) for sample in outputs for output in sample)
    return {"seconds": seconds, "cpu": cpu, "sampled": client.sampled, "trained": trained}


def _row(loop: str, steps: list[dict[str, float]]) -> dict[str, Any]:
    sampled, trained = (sum(int(step[key]) for step in steps) for key in ("sampled", "trained"))
    return {
        "loop": loop,
        "steps": len(steps),
        "median_step_seconds": round(statistics.median(step["seconds"] for step in steps), 2),
        "cpu_ms_per_sample": round(1000 * statistics.median(step["cpu"] for step in steps) / SAMPLES, 2),
        "sampled_tokens": sampled,
        "trained_tokens": trained,
        "trained_per_sampled": round(trained / sampled, 4),
    }


def _tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[START],
        chat_template=TEMPLATE,
    )


def _verls(client: Client, tokenizer: Any) -> Loop:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
    from verl.tools.function_tool import FunctionTool
    from verl.tools.schemas import OpenAIFunctionToolSchema
    from verl.utils.dataset.rl_dataset import RLHFDataset

    @ToolParser.register("fenced")
    class Fenced(ToolParser):  # type: ignore[misc]
        """One fenced block is one call of `bash`, as for our agent."""

        async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[Any]]:
            text = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
            return text, [FunctionCall(name="bash", arguments="{}")]

    async def bash() -> str:
        await asyncio.sleep(TOOL_SECONDS)
        return "1 - 2\n"

    function = {"name": "bash", "description": "Run a command.", "parameters": {"type": "object", "properties": {}}}
    schema = OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})
    multi_turn = {"max_user_turns": None, "max_assistant_turns": TURNS, "max_parallel_calls": 1, "format": "fenced"}
    multi_turn |= {"max_tool_response_length": 2000, "tool_response_truncate_side": "middle"}
    rollout = {"multi_turn": multi_turn, "prompt_length": PROMPT_TOKENS, "response_length": RESPONSE_TOKENS}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {**rollout, "full_determinism": False}}})
    parts = {
        "trainer_config": DictConfigWrap(config),
        "server_manager": client,
        "tokenizer": tokenizer,
        "processor": None,
        "dataset_cls": RLHFDataset,
        "data_config": DictConfigWrap(OmegaConf.create({})),
        "hf_model_type": "llama",
        "tools": ToolListWrap([FunctionTool("bash", bash, schema, is_async=True)]),
    }

    async def run(_number: int) -> list[Any]:
        prompt = [{"role": "user", "content": INSTRUCTION}]
        return [await ToolAgentLoop(**parts).run({"temperature": 1.0, "logprobs": True}, raw_prompt=prompt)]

    return run


def _ours(folder: Path, layer: Path, proxy: ProxyServer) -> Loop:
    scope = SandboxScope(ToolTime(Delays(0.0, 0.0, 0.0), faulty=False), OneImage(layer, 0), "side-by-side")
    runner = TrialRunner(SAMPLES, scope)
    settings = RolloutSettings(agent=AGENT, concurrency=SAMPLES, keep_trials="none", **LIMITS)

    async def run(number: int) -> list[Any]:
        request = RolloutRequest(
            rollout_id=f"r{number}",
            phase=Phase.TRAIN,
            step=1,
            task=TASK,
            split="train",
            task_dir=str(folder / TASK),
            trials_dir=str(folder / "trials"),
            sampling=Sampling(temperature=1.0, max_tokens=64),
            prompt_tokens=PROMPT_TOKENS,
            response_tokens=RESPONSE_TOKENS,
        )
        result = await run_rollout(request, settings, proxy, runner)
        return agent_loop_outputs(result, training_rows(result))

    return run
