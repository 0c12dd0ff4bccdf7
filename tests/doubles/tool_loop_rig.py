"""verl's own agent loops over a scripted engine: real tokens, templates, parsers and tools; no model and no Ray.

To be imported within a test: verl takes seconds.

Faked: the engine, which samples the texts that it is given, with a log-probability of -0.5 for each token.
"""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agentic.models.tiny import arithmetic
from agentic.models.tiny.tokenizer import END, train_tokenizer
from agentic.rollout.agent_loop_config import CONFIG_VARIABLE, RolloutJob
from agentic.rollout.agents.code_text import CODE_TOOL
from agentic.rollout.records import Phase, RolloutRecord, read_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # verl's imports warn about each other
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap, ToolListWrap
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
    from verl.workers.rollout.replica import TokenOutput

    from agentic.training.tools.loops import RecordedSingleTurnLoop, RecordedToolLoop
    from agentic.training.tools.sandbox_tool import SandboxTool

__all__ = ["Fixed", "LoopRig", "SandboxTool", "ToolResponse", "call"]

CORPUS = [arithmetic.called("print(37*48+129)"), arithmetic.boxed("12"), "user", "assistant", "tool", "Error"] * 20


def call(name: str, arguments: Any) -> str:
    """A reply that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Fixed(BaseTool):  # type: ignore[misc]
    """A tool that answers with what it is given, or does what it is told."""

    def __init__(self, answer: Any) -> None:
        super().__init__({}, OpenAIFunctionToolSchema.model_validate(CODE_TOOL))
        self.answer = answer

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        return await self.answer() if callable(self.answer) else self.answer


class ScriptedEngine:
    """Samples the given replies, one a call, and keeps what it was asked with."""

    def __init__(self, tokenizer: Any, replies: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._replies = iter(replies)
        self.prompts: list[str] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        self.prompts.append(self._tokenizer.decode(prompt_ids))
        ids = self._tokenizer.encode(next(self._replies) + END, add_special_tokens=False)
        versions = {"min_global_steps": 3, "max_global_steps": 3}
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields=versions)


class LoopRig:
    """Runs loops in a folder and reads their records."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = train_tokenizer(CORPUS, 320, arithmetic.PIECES, arithmetic.TEMPLATE)
        job = RolloutJob(
            run_id="r",
            run_dir=folder,
            data_dir=folder,
            store_dir=folder,
            model_dir=folder,
            max_prompt_tokens=400,
            max_response_tokens=4000,
        )
        self.folder = folder
        self.environment = {CONFIG_VARIABLE: str(folder / "rollout.json")}
        (folder / "rollout.json").write_text(job.model_dump_json())

    async def run(
        self, replies: Sequence[str], tools: Sequence[BaseTool], *, split: str = "train", **options: Any
    ) -> tuple[list[AgentLoopOutput], ScriptedEngine]:
        """One rollout of the tool loop over these replies; 42 is right."""
        settings = {"call_seconds": 5.0, "response_limit_characters": 5000} | options
        engine = ScriptedEngine(self.tokenizer, replies)
        loop = RecordedToolLoop(*self._parts(engine), tools=ToolListWrap(list(tools)), **settings)
        return await loop.run({}, **self._row(split)), engine

    async def run_single(
        self, reply: str, *, answer: str = "42", question: str = "What is 6*7?"
    ) -> list[AgentLoopOutput]:
        """One rollout of the single-turn loop; `answer` is right."""
        loop = RecordedSingleTurnLoop(*self._parts(ScriptedEngine(self.tokenizer, [reply])))
        row = self._row("train", answer) | {"raw_prompt": [{"role": "user", "content": question}]}
        return await loop.run({}, **row)

    def records(self, phase: Phase = Phase.TRAIN) -> list[RolloutRecord]:
        return read_records(self.folder, phase)

    def responses(self, output: AgentLoopOutput) -> tuple[str, str]:
        """What was sampled, and what was not, of a response."""
        pairs = list(zip(output.response_ids, output.response_mask, strict=True))
        sampled, given = ([token for token, mask in pairs if mask == wanted] for wanted in (1, 0))
        return self.tokenizer.decode(sampled), self.tokenizer.decode(given)

    def _parts(self, engine: ScriptedEngine) -> tuple[Any, ...]:
        rollout = {
            "prompt_length": 400,
            "response_length": 4000,
            "full_determinism": False,
            "multi_turn": {
                "max_user_turns": None,
                "max_assistant_turns": 4,
                "max_parallel_calls": 1,
                "max_tool_response_length": 500,
                "tool_response_truncate_side": "middle",
                "format": "hermes",
            },
        }
        config = DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}}))
        data = DictConfigWrap(OmegaConf.create({}))
        return config, engine, self.tokenizer, None, dict, data

    def _row(self, split: str, answer: str = "42") -> dict[str, Any]:
        return {
            "raw_prompt": [{"role": "user", "content": "What is 6*7?"}],
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"task": "train-00000", "split": split},
            "tools_kwargs": {},
            "uid": "u",
            "session_id": 0,
            "global_steps": 5,
        }
