"""The launchers' profiles reach verl with the values of verl's own guides; verl's configuration takes them all."""

from typing import Any

import pytest
from composed_profile import compose, values_at

from agentic.training.sizing import ModelShape

SHAPES = {
    "ppo-gsm8k": ModelShape(parameters=494_032_768, attention_heads=14, key_value_heads=2),
    "grpo-math": ModelShape(parameters=7_615_616_512, attention_heads=28, key_value_heads=4),
}

GUIDE = {
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "data.train_batch_size": 256,
    "data.max_prompt_length": 512,
    "data.max_response_length": 256,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.4,
    "critic.optim.lr": 1e-5,
    "critic.ppo_micro_batch_size_per_gpu": 4,
    "trainer.nnodes": 2,
    "trainer.n_gpus_per_node": 4,
    "trainer.save_freq": 10,
    "trainer.test_freq": 10,
    "trainer.total_training_steps": 15 * (7473 // 256),
}
"""PPO on GSM8K in verl's guide for Slurm. Its `val_before_train=False` is not kept: a report compares with before."""

LEAN = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.3,
    "actor_rollout_ref.rollout.enable_chunked_prefill": True,
}
"""What verl's task for SkyPilot saves memory by."""


@pytest.mark.parametrize(("profile", "values"), [("ppo-gsm8k", GUIDE), ("grpo-math", LEAN)])
def test_the_guides_values_reach_verl(profile: str, values: dict[str, Any]) -> None:
    _, config = compose(profile, SHAPES[profile])
    assert values_at(config, values) == values


@pytest.mark.parametrize(
    ("profile", "model", "origin"),
    [("ppo-gsm8k", "Qwen/Qwen2.5-0.5B-Instruct", "gsm8k"), ("grpo-math", "Qwen/Qwen2.5-7B-Instruct", "math")],
)
def test_model_and_problems_are_the_guides_and_one_reply_answers_each(profile: str, model: str, origin: str) -> None:
    settings, _ = compose(profile, SHAPES[profile])
    assert getattr(settings.model, "id", None) == model
    assert getattr(settings.data, "origin", None) == origin
    assert settings.train.agent_loop == "single_turn_agent"
