"""Settings to verl's command line. Pure: the same job gives the same list, and golden files hold it.

`verl_overrides` owns every key that it writes. The user's `train.overrides` come last and may set any other key of
verl; one that names an owned key is refused with the setting to change instead, since two places that decide the same
thing end in a run that nobody can explain.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from agentic.errors import PermanentError
from agentic.training.settings import TrainSettings
from agentic.training.sizing import Sizing
from agentic.training.tools.settings import ToolSettings

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
WORKER_EXTENSION = "agentic.training.platform.vllm_worker.CpuWorkerExtension"

IN_PROCESS_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""vLLM's CPU build starts a worker process of its own unless the executor is named by its class; one import of the
stack less is 12 s of a start on two cores (38 s against 52)."""

Value = str | int | float | bool | Path
Overrides = dict[str, Value]


class JobPaths(NamedTuple):
    """Where a training job finds and leaves things; absolute."""

    model_dir: Path
    train_file: Path
    validation_files: tuple[Path, ...]
    checkpoint_dir: Path
    agent_loop_file: Path
    audit_file: Path
    tool_file: Path | None = None
    """The tool configuration file, for `tool_agent`."""


def verl_overrides(
    train: TrainSettings,
    sizing: Sizing,
    paths: JobPaths,
    *,
    run_id: str,
    validates_first: bool = True,
    validates_only: bool = False,
) -> list[str]:
    """The arguments of `python -m verl.trainer.main_ppo`.

    Args:
        validates_first: verl validates what it starts from, the policy or a checkpoint, before it trains.
        validates_only: and then ends.

    Raises:
        PermanentError: `train.overrides` names a key that a setting owns, or has no `=`.
    """
    owned: Overrides = {
        **_data(train, paths),
        **_algorithm(train),
        **_actor(train, sizing, paths),
        **_rollout(train, sizing, paths),
        **_trainer(train, paths, run_id=run_id),
        "trainer.val_before_train": validates_first,
        "trainer.val_only": validates_only,
    }
    if train.algorithm == "ppo":
        owned |= _critic(train, sizing, paths)
    if train.device == "cpu":
        owned |= cpu_overrides(train) | (_cpu_critic() if train.algorithm == "ppo" else {})
    _refuse_owned(train.overrides, owned)
    return [f"{key}={_text(value)}" for key, value in owned.items()] + list(train.overrides)


def quoted(text: str) -> str:
    """A string that Hydra reads as it is: a path may hold commas, brackets, blanks or letters of any language."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def environment_overrides(variables: Mapping[str, str]) -> list[str]:
    """Environment variables that Ray gives to every worker of the job."""
    return [f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}={quoted(value)}" for name, value in variables.items()]


def _text(value: Value) -> str:
    return quoted(str(value)) if isinstance(value, Path) else str(value)


def _refuse_owned(overrides: tuple[str, ...], owned: Overrides) -> None:
    bare = {key.lstrip("+") for key in owned}
    for item in overrides:
        key, equals, _ = item.partition("=")
        if not equals:
            raise PermanentError(f"train.overrides has {item!r}: write key=value")
        if key.lstrip("+~") in bare:
            raise PermanentError(
                f"train.overrides sets {key.lstrip('+~')}, which the settings own: "
                "change the setting that it comes from (see `python3 workflows/submit.py plan`)"
            )


def _data(train: TrainSettings, paths: JobPaths) -> Overrides:
    files = ",".join(quoted(str(path)) for path in paths.validation_files)
    return {
        "data.train_files": paths.train_file,
        "data.val_files": f"[{files}]",
        "data.train_batch_size": train.prompts_per_step,
        "data.max_prompt_length": train.max_prompt_tokens,
        "data.max_response_length": train.max_response_tokens,
        "data.seed": train.seed,
        # The prompt that verl sees is the task's text alone; the rollout's real prompt is the agent's, so a filter on
        # verl's would drop or keep the wrong tasks. The session's budget is what bounds it.
        "data.filter_overlong_prompts": False,
        "data.return_raw_chat": True,
        "data.dataloader_num_workers": 0,
    }


def _algorithm(train: TrainSettings) -> Overrides:
    return {
        "algorithm.adv_estimator": "grpo" if train.algorithm == "grpo" else "gae",
        "algorithm.use_kl_in_reward": False,
    }


def _batching(section: str, prefix: str, train: TrainSettings) -> Overrides:
    """Fixed micro batches where they are set, else dynamic ones by token count."""
    if train.micro_batch_rollouts is not None:
        only_scores = train.log_prob_micro_batch_rollouts if prefix == "log_prob_" else None
        return {f"{section}.{prefix}micro_batch_size_per_gpu": only_scores or train.micro_batch_rollouts}
    return {
        f"{section}.{'log_prob_' if prefix.startswith('log') else ''}use_dynamic_bsz": True,
        f"{section}.{prefix}max_token_len_per_gpu": train.max_tokens_per_gpu,
    }


def _actor(train: TrainSettings, sizing: Sizing, paths: JobPaths) -> Overrides:
    return {
        f"{MODEL}.path": paths.model_dir,
        f"{MODEL}.enable_gradient_checkpointing": train.device == "cuda",
        f"{ACTOR}.optim.lr": train.learning_rate,
        f"{ACTOR}.ppo_mini_batch_size": sizing.mini_batch_prompts,
        **_batching(ACTOR, "ppo_", train),
        f"{ACTOR}.clip_ratio": train.clip_ratio,
        f"{ACTOR}.use_kl_loss": False,
        f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": sizing.sequence_parallel,
        f"{ACTOR}.fsdp_config.param_offload": sizing.offload,
        f"{ACTOR}.fsdp_config.optimizer_offload": sizing.offload,
        f"{ACTOR}.checkpoint.save_contents": "[model,optimizer,extra,hf_model]",
        f"{ACTOR}.checkpoint.load_contents": "[model,optimizer,extra]",
    }


def _rollout(train: TrainSettings, sizing: Sizing, paths: JobPaths) -> Overrides:
    return {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.n": train.rollouts_per_prompt,
        f"{ROLLOUT}.temperature": train.temperature,
        f"{ROLLOUT}.dtype": train.dtype,
        f"{ROLLOUT}.tensor_model_parallel_size": sizing.tensor_parallel,
        f"{ROLLOUT}.gpu_memory_utilization": sizing.gpu_memory_utilization,
        f"{ROLLOUT}.max_model_len": train.max_prompt_tokens + train.max_response_tokens,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.logprobs_mode": "processed_logprobs",
        **_batching(ROLLOUT, "log_prob_", train),
        f"{ROLLOUT}.val_kwargs.do_sample": False,
        f"{ROLLOUT}.val_kwargs.temperature": 0,
        f"{ROLLOUT}.val_kwargs.n": 1,
        f"{ROLLOUT}.load_format": "auto" if train.device == "cpu" else "dummy",
        f"{ROLLOUT}.agent.num_workers": 1 if train.device == "cpu" else 8,
        f"{ROLLOUT}.agent.agent_loop_config_path": paths.agent_loop_file,
        f"{ROLLOUT}.agent.default_agent_loop": train.agent_loop,
        **(_tools(train.tools, paths.tool_file) if paths.tool_file else {}),
    }


def _tools(tools: ToolSettings, file: Path) -> Overrides:
    """For verl's ToolAgentLoop."""
    return {
        f"{ROLLOUT}.multi_turn.enable": True,
        f"{ROLLOUT}.multi_turn.tool_config_path": file,
        f"{ROLLOUT}.multi_turn.format": tools.parser,
        f"{ROLLOUT}.multi_turn.max_assistant_turns": tools.max_turns,
        f"{ROLLOUT}.multi_turn.max_tool_response_length": tools.response_characters,
    }


def agent_loops(train: TrainSettings) -> str:
    """verl's file of agent loops: the one that rolls out, with its settings."""
    match train.agent_loop:
        case "remote_agent":
            entry: dict[str, Value] = {"_target_": "agentic.rollout.agent_loop.RemoteAgentLoop"}
        case "single_turn_agent":
            entry = {"_target_": "agentic.training.tools.loops.RecordedSingleTurnLoop"}
        case "tool_agent":
            entry = {
                "_target_": "agentic.training.tools.loops.RecordedToolLoop",
                "reward_weight": train.tools.reward_weight,
                "call_seconds": train.tools.call_seconds,
                "response_limit_characters": train.tools.response_limit_characters,
            }
    return yaml.safe_dump([{"name": train.agent_loop, **entry}], sort_keys=False)


def _trainer(train: TrainSettings, paths: JobPaths, *, run_id: str) -> Overrides:
    return {
        "trainer.nnodes": train.nodes,
        "trainer.n_gpus_per_node": train.gpus_per_node,
        "trainer.device": train.device,
        "trainer.logger": json.dumps(["console", "file", *train.trackers], separators=(",", ":")),
        "trainer.project_name": "agentic",
        "trainer.experiment_name": run_id,
        "trainer.default_local_dir": paths.checkpoint_dir,
        "trainer.resume_mode": "auto",
        "trainer.total_training_steps": train.steps,
        # Steps decide; an epoch is however often the tasks have to be gone through for them.
        "trainer.total_epochs": train.steps,
        "trainer.test_freq": train.validate_every,
        "trainer.save_freq": train.save_every,
        "trainer.max_actor_ckpt_to_keep": _kept(train),
        "trainer.v1.trainer_mode": "sync",
        "trainer.v1.sampler.custom_sampler.path": "pkg://agentic.training.sampler",
        "trainer.v1.sampler.custom_sampler.name": "AuditedReplayBuffer",
        "+trainer.v1.sampler.sampler_kwargs.poll_seconds": train.poll_seconds,
        "+trainer.v1.sampler.sampler_kwargs.shuffle_rewards": train.shuffle_rewards,
        "+trainer.v1.sampler.sampler_kwargs.seed": train.seed,
        "+trainer.v1.sampler.sampler_kwargs.audit_file": paths.audit_file,
        # GAE rates a rollout against its critic and needs no other of its group.
        "+trainer.v1.sampler.sampler_kwargs.min_group_rollouts": 2 if train.algorithm == "grpo" else 1,
    }


def _kept(train: TrainSettings) -> int | str:
    return "null" if train.keep_checkpoints is None else train.keep_checkpoints


def _critic(train: TrainSettings, sizing: Sizing, paths: JobPaths) -> Overrides:
    return {
        "critic.model.path": paths.model_dir,
        "critic.optim.lr": train.critic_learning_rate,
        "critic.ppo_mini_batch_size": sizing.mini_batch_prompts,
        **_batching("critic", "ppo_", train),
        "critic.fsdp.param_offload": sizing.offload,
        "critic.fsdp.optimizer_offload": sizing.offload,
        "trainer.max_critic_ckpt_to_keep": _kept(train),
    }


def cpu_overrides(train: TrainSettings) -> Overrides:
    """What a machine without a GPU needs on top: no flash attention, no sleep mode, no compilation, float32."""
    return {
        f"{MODEL}.use_remove_padding": False,
        f"+{MODEL}.override_config.attn_implementation": "sdpa",
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.use_torch_compile": False,
        f"{ACTOR}.fsdp_config.use_torch_compile": False,
        f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
        f"{ROLLOUT}.enforce_eager": True,
        f"{ROLLOUT}.free_cache_engine": False,
        f"+{ROLLOUT}.enable_sleep_mode": False,
        f"{ROLLOUT}.max_num_seqs": 128,
        f"{ROLLOUT}.max_num_batched_tokens": 4096,
        # One bucket must exceed the largest tensor; the default of 2 GiB would be allocated in shared memory.
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 256,
        f"+{ROLLOUT}.engine_kwargs.vllm.worker_extension_cls": WORKER_EXTENSION,
        f"+{ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend": IN_PROCESS_EXECUTOR,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "reward.num_workers": 1,
    }


def _cpu_critic() -> Overrides:
    return {
        "critic.strategy": "fsdp2",
        "critic.model.use_remove_padding": False,
        "critic.fsdp.use_torch_compile": False,
        "+critic.fsdp.mixed_precision.param_dtype": "fp32",
    }
