"""Settings of training and of the Ray cluster of one machine. Light: pydantic only."""

from typing import Literal, Self

from pydantic import Field, model_validator

from agentic.settings import Settings
from agentic.training.tools.settings import ToolSettings


class RaySettings(Settings):
    """The Ray cluster that `launch-cluster` starts when the run stays on one machine."""

    cpus: int = Field(16, gt=0)
    """Logical CPUs that Ray schedules on. More than the machine has: verl's many small actors ask for one each."""

    object_store_bytes: int = Field(1_000_000_000, ge=100_000_000)
    """Shared memory for Ray objects, bytes."""

    start_timeout_seconds: float = Field(120.0, gt=0)
    """How long the head may take until it answers."""


class TrainSettings(Settings):
    """What verl trains with. `None` means that sizing decides."""

    algorithm: Literal["grpo", "ppo"] = "grpo"
    """`grpo` needs no critic; `ppo` trains one and uses GAE. On GPUs verl runs the critic by flash attention, which the
    trainer's image has to bring."""

    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu` loads the CPU platform plugin; everything else is the same code path."""

    nodes: int = Field(1, gt=0)
    """Machines with GPUs."""

    gpus_per_node: int = Field(8, gt=0)
    """GPUs of each machine; 1 stands for the CPU itself when `device` is `cpu`."""

    gpu_memory_gib: float = Field(80.0, gt=0)
    """Memory of one GPU, GiB; sizing derives offloading and the engine's share from it."""

    steps: int = Field(300, gt=0)
    """Optimisation steps in all."""

    prompts_per_step: int = Field(64, gt=0)
    """Tasks sampled a step; times `rollouts_per_prompt` is the batch."""

    rollouts_per_prompt: int = Field(4, gt=0)
    """Rollouts of one task, the group of GRPO; warm pools follow it."""

    mini_batch_prompts: int | None = Field(None, gt=0)
    """Tasks of one optimiser update; `None` = all of a step (one update)."""

    micro_batch_rollouts: int | None = Field(None, gt=0)
    """Rollouts of one forward pass on one GPU; `None` = dynamic batches by token count."""

    log_prob_micro_batch_rollouts: int | None = Field(None, gt=0)
    """The same where only log-probabilities are computed, which takes less memory; `None` = as `micro_batch_rollouts`,
    and without that one unused."""

    max_tokens_per_gpu: int = Field(12288, gt=0)
    """Tokens of one dynamic batch on one GPU (`ppo_max_token_len_per_gpu`); at least prompt + response."""

    max_prompt_tokens: int = Field(4096, gt=0)
    """Tokens of a rollout's first prompt."""

    max_response_tokens: int = Field(8192, gt=0)
    """Tokens of everything after it: sampled turns and observations."""

    learning_rate: float = Field(1e-6, gt=0)
    """Of the actor (AdamW)."""

    critic_learning_rate: float = Field(1e-5, gt=0)
    """Of the critic; used by `ppo` only."""

    clip_ratio: float = Field(0.2, gt=0, lt=1)
    """PPO's clip range on both sides."""

    temperature: float = Field(1.0, gt=0)
    """Of training rollouts. Validation is greedy."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the engine's weights; training keeps float32 master weights."""

    tensor_parallel: int | None = Field(None, gt=0)
    """GPUs that one engine spans; `None` = the fewest that hold the model."""

    sequence_parallel: int = Field(1, gt=0)
    """Ulysses: GPUs that share one sequence in training."""

    gpu_memory_utilization: float | None = Field(None, gt=0, lt=1)
    """The engine's share of GPU memory; `None` = 0.4 to 0.6 by the number of GPUs."""

    offload: bool | None = None
    """Keep parameters and optimiser in host memory between their uses; `None` = when the GPU is too small."""

    validate_every: int = Field(100, gt=0)
    """Steps between validations; one runs before training and one after the last step."""

    save_every: int = Field(100, gt=0)
    """Steps between checkpoints; a multiple of it should meet validations, so that the best can be kept."""

    patience: int | None = Field(None, gt=0)
    """Stop when the validation rate has not risen for this many validations; `None` = train all steps."""

    keep_checkpoints: int | None = Field(None, ge=2)
    """How many checkpoints stay, two at least, since verl deletes the oldest before all of the newest is written;
    `None` = all."""

    seed: int = 0
    """Of the order of tasks and of verl's samplers."""

    poll_seconds: float = Field(0.2, gt=0)
    """How often the trainer asks whether a batch is complete (verl's own default is 2 s)."""

    shuffle_rewards: bool = False
    """Control experiment: rewards are permuted within each group, so that nothing can be learned from them."""

    threads: int | None = Field(None, gt=0)
    """OpenMP threads of each process on the CPU; `None` = the number of cores, at most 2."""

    agent_loop: Literal["remote_agent", "tool_agent", "single_turn_agent"] = "remote_agent"
    """Who rolls out: `remote_agent` runs `rollout.agent` in a sandbox through the proxy; `tool_agent` is verl's
    ToolAgentLoop with `tools`, and `single_turn_agent` one reply, for data whose rows hold their answer (`data.source`
    math)."""

    tools: ToolSettings = ToolSettings()
    """Tools of `tool_agent`."""

    trackers: tuple[Literal["tensorboard", "wandb", "mlflow", "swanlab"], ...] = ()
    """Where verl sends its metrics as well, beside its log and `metrics.jsonl`; what it needs to log in, such as
    WANDB_API_KEY, is in the trainer's environment."""

    overrides: tuple[str, ...] = ()
    """`key=value` for verl, added last; a key that another setting owns is refused by name."""

    @model_validator(mode="after")
    def _has_groups(self) -> Self:
        if self.algorithm == "grpo" and self.rollouts_per_prompt < 2:
            raise ValueError("grpo compares the rollouts of a prompt: give rollouts_per_prompt 2 or more, or take ppo")
        return self
