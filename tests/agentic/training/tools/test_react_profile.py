"""The profile of verl's ReAct tutorial reaches verl with its values; it was not run, for want of eight GPUs."""

from pathlib import Path

import pytest
from composed_profile import compose, values_at

from agentic.training.sizing import ModelShape

# The first import of verl takes longer than a test may on a busy machine.
pytestmark = pytest.mark.timeout(240)

QWEN3 = ModelShape(parameters=1_720_574_976, attention_heads=16, key_value_heads=8)
TOOLS = Path("/w/tool_config.json")
GUIDE = {
    "algorithm.adv_estimator": "grpo",
    "data.return_raw_chat": True,
    "data.train_batch_size": 32,
    "data.max_prompt_length": 1024,
    "data.max_response_length": 1024,
    "data.apply_chat_template_kwargs.enable_thinking": False,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.mode": "async",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.multi_turn.tool_config_path": str(TOOLS),
    "actor_rollout_ref.rollout.multi_turn.format": "hermes",
    "actor_rollout_ref.rollout.agent.default_agent_loop": "tool_agent",
    "trainer.val_before_train": True,
    "trainer.log_val_generations": 10,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_training_steps": 5,
}


def test_the_guides_values_reach_verl() -> None:
    settings, config = compose("react-qwen3-1.7b", QWEN3, tool_file=TOOLS)
    assert values_at(config, GUIDE) == GUIDE
    assert settings.model.model_dump()["id"] == "Qwen/Qwen3-1.7B"
    assert settings.data.model_dump()["validation"] == 100
