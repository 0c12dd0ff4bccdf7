"""Stands where verl's agent loop worker does; run as a program by test_rollout_agent_loop.py, prints what it got."""

import asyncio
import gc
import json
import sys

import ray
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl_client import ScriptedClient

from agentic.rollout.agent_loop import RemoteAgentLoop
from agentic.rollout.agent_loop_config import load_job
from agentic.rollout.records import token_digest

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
LOOK = "```bash\ncat calc.txt\n```"
FIX = "```bash\necho '1 + 2' > calc.txt\n```"
SUBMIT = "```bash\nsubmit\n```"


def make_loop() -> RemoteAgentLoop:
    """As verl makes one for each sample."""
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"prompt_length": 400, "response_length": 800}}})
    return RemoteAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=ScriptedClient(LOOK, FIX, SUBMIT),
        tokenizer=AutoTokenizer.from_pretrained(load_job().model_dir),
        processor=None,
        dataset_cls=None,
        data_config=DictConfigWrap(OmegaConf.create({})),
        hf_model_type="llama",
        tools=None,
    )


def row(task: str, split: str = "train") -> dict:
    """A row of the data set with what verl adds to it."""
    return {
        "uid": f"uid-{task}",
        "session_id": 0 if split == "train" else 1,
        "global_steps": 3,
        "index": 0,
        "raw_prompt": [{"role": "user", "content": "Fix calc.txt."}],
        "extra_info": {"task": task, "split": split, "index": 0},
    }


async def drive() -> dict:
    """One rollout that is solved, one that is lost, one that validates; all at once."""
    rows = [row("calc"), row("unbuilt"), row("calc", "held-out")]
    solved, lost, _ = await asyncio.gather(*(make_loop().run(SAMPLING, **each) for each in rows))
    actors = actor_ids()
    gc.collect()
    await asyncio.sleep(2)  # between two steps nobody runs a rollout, and Ray ends actors that nobody holds
    return {
        "calc": [describe(output) for output in solved],
        "unbuilt": [describe(output) for output in lost],
        "actors": [actors, actor_ids()],
    }


def actor_ids() -> list[str]:
    """Which actors serve the run; another id is another process, without the sessions of the first."""
    run_id = load_job().run_id
    return [ray.get_actor(f"{kind}-{run_id}")._actor_id.hex() for kind in ("proxy", "trial-runner")]


def describe(output) -> dict:
    """What the trainer would see of a trajectory."""
    fields = output.as_dict()
    extra = fields["extra_fields"]
    return {
        "digest": token_digest(fields["responses"].tolist(), fields["response_mask"].tolist()),
        "reward": fields["rm_scores"][-1].item(),
        "steps": [extra["min_global_steps"], extra["max_global_steps"]],
        "info": extra["reward_extra_info"],
    }


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    sys.stdout.write(json.dumps(asyncio.run(drive())) + "\n")
    ray.shutdown()
