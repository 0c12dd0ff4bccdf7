"""The profile of verl's ReAct tutorial reaches verl with its values; it was not run, for want of eight GPUs."""

from pathlib import Path

from agentic.training.overrides import JobPaths, verl_overrides
from agentic.training.sizing import ModelShape, resolve
from workflows.settings import load_settings

QWEN3 = ModelShape(parameters=1_720_574_976, attention_heads=16, key_value_heads=8)
TOOLS = Path("/w/tool_config.json")
PATHS = JobPaths(
    model_dir=Path("/w/models/policy"),
    train_file=Path("/w/train.parquet"),
    validation_files=(Path("/w/validation.parquet"),),
    checkpoint_dir=Path("/w/checkpoints"),
    agent_loop_file=Path("/w/agent_loops.yaml"),
    audit_file=Path("/w/trained.jsonl"),
    tool_file=TOOLS,
)
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
    import hydra
    from omegaconf import OmegaConf

    settings = load_settings("react-qwen3-1.7b", (), {})
    arguments = verl_overrides(settings.train, resolve(settings.train, QWEN3), PATHS, run_id="r")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", overrides=arguments)
    assert {name: OmegaConf.select(config, name) for name in GUIDE} == GUIDE
    assert settings.model.model_dump()["id"] == "Qwen/Qwen3-1.7B"
    assert settings.data.model_dump()["validation"] == 100
