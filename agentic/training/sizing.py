"""The one place that turns (model, GPUs, memory, batch) into verl's sizes. Pure and light.

`resolve` fills what the settings leave to it and refuses what cannot run, naming the nearest values that can. Rules of
thumb are constants with their reason; nothing here measures a machine.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from agentic.training.errors import SizingError
from agentic.training.settings import TrainSettings

GIB = 1024**3
ENGINE_BYTES_PER_PARAMETER = 2
"""bfloat16 weights in the inference engine."""
TRAINING_BYTES_PER_PARAMETER = 16
"""float32 master weights, gradients and AdamW's two moments, sharded over all GPUs."""
ENGINE_WEIGHT_SHARE = 0.35
"""An engine whose weights take more of a GPU has too little left for its key-value cache beside the trainer."""
TRAINING_SHARE = 0.4
"""Above this share of a GPU for sharded training state, parameters and optimiser go to host memory."""
HOST_BYTES_PER_PARAMETER = 6.7
HOST_BASE_GIB = 8
"""Host memory of the trainer's pod: a 7B model with offload needs at least 55 GiB (7.6e9 parameters)."""


class ModelShape(BaseModel):
    """What sizing needs to know of a model, from its `config.json`."""

    model_config = ConfigDict(frozen=True)

    parameters: int
    attention_heads: int
    key_value_heads: int


class Sizing(BaseModel):
    """Resolved sizes; everything verl is told about shape and memory."""

    model_config = ConfigDict(frozen=True)

    total_gpus: int
    data_parallel: int
    tensor_parallel: int
    sequence_parallel: int
    gpu_memory_utilization: float
    offload: bool
    mini_batch_prompts: int
    host_memory_gib: int


def read_shape(model_dir: Path) -> ModelShape:
    """The shape of a Hugging Face folder; parameters are counted from the configuration, not from the weights.

    Raises:
        SizingError: no `config.json`, or one that lacks a field that is needed.
    """
    path = model_dir / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise SizingError(f"{path} is missing: download the model first") from error
    try:
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        heads = int(config["num_attention_heads"])
        intermediate, vocabulary = int(config["intermediate_size"]), int(config["vocab_size"])
    except KeyError as error:
        raise SizingError(
            f"{path} has no {error}: only decoder models with the usual field names can be sized"
        ) from error
    kv_heads = int(config.get("num_key_value_heads") or heads)
    attention = hidden * hidden * 2 + hidden * (hidden // heads) * kv_heads * 2
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    parameters = layers * (attention + 3 * hidden * intermediate) + embeddings
    return ModelShape(parameters=parameters, attention_heads=heads, key_value_heads=kv_heads)


def resolve(train: TrainSettings, shape: ModelShape) -> Sizing:
    """Fill in and check every size.

    Raises:
        SizingError: one line with the value, the reason and the nearest values that work.
    """
    total = train.nodes * train.gpus_per_node
    tensor_parallel = train.tensor_parallel or _smallest_tensor_parallel(train, shape)
    _check_tensor_parallel(tensor_parallel, train, shape)
    _check_sequence_parallel(train, shape, total)
    mini_batch = train.mini_batch_prompts or train.prompts_per_step
    data_parallel = total // train.sequence_parallel
    _check_batch(train, mini_batch, data_parallel)
    training_bytes = shape.parameters * TRAINING_BYTES_PER_PARAMETER / total
    crowded = training_bytes > TRAINING_SHARE * train.gpu_memory_gib * GIB
    return Sizing(
        total_gpus=total,
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        sequence_parallel=train.sequence_parallel,
        gpu_memory_utilization=train.gpu_memory_utilization or _engine_share(total),
        offload=crowded if train.offload is None else train.offload,
        mini_batch_prompts=mini_batch,
        host_memory_gib=round(HOST_BASE_GIB + shape.parameters * HOST_BYTES_PER_PARAMETER / GIB),
    )


def _engine_share(total_gpus: int) -> float:
    """0.4 where few GPUs hold trainer and engine, 0.6 where sharding leaves more room."""
    return 0.4 if total_gpus <= 2 else 0.5 if total_gpus <= 4 else 0.6


def _divisors(number: int, at_most: int) -> list[int]:
    return [candidate for candidate in range(1, min(number, at_most) + 1) if number % candidate == 0]


def _smallest_tensor_parallel(train: TrainSettings, shape: ModelShape) -> int:
    room = ENGINE_WEIGHT_SHARE * train.gpu_memory_gib * GIB
    for size in _tensor_parallel_sizes(train, shape):
        if shape.parameters * ENGINE_BYTES_PER_PARAMETER / size <= room:
            return size
    raise SizingError(
        f"a model of {shape.parameters / 1e9:.1f}B parameters does not fit {train.gpus_per_node} GPUs of "
        f"{train.gpu_memory_gib:g} GiB as one engine: raise train.gpus_per_node or take a smaller model"
    )


def _check_tensor_parallel(size: int, train: TrainSettings, shape: ModelShape) -> None:
    works = _tensor_parallel_sizes(train, shape)
    if size not in works:
        raise SizingError(
            f"train.tensor_parallel is {size} but {shape.attention_heads} attention heads on {train.gpus_per_node} "
            f"GPUs a node allow {_nearest(size, works)}"
        )


def _tensor_parallel_sizes(train: TrainSettings, shape: ModelShape) -> list[int]:
    return [n for n in _divisors(shape.attention_heads, train.gpus_per_node) if train.gpus_per_node % n == 0]


def _check_sequence_parallel(train: TrainSettings, shape: ModelShape, total: int) -> None:
    works = [n for n in _divisors(shape.attention_heads, total) if total % n == 0]
    if train.sequence_parallel not in works:
        raise SizingError(
            f"train.sequence_parallel is {train.sequence_parallel} but {shape.attention_heads} attention heads on "
            f"{total} GPUs allow {_nearest(train.sequence_parallel, works)}"
        )
    longest = train.max_prompt_tokens + train.max_response_tokens
    if train.micro_batch_rollouts is None and train.max_tokens_per_gpu * train.sequence_parallel < longest:
        raise SizingError(
            f"train.max_tokens_per_gpu is {train.max_tokens_per_gpu} times sequence_parallel "
            f"{train.sequence_parallel}, less than one rollout of up to {longest} tokens: raise either, or lower "
            "max_prompt_tokens or max_response_tokens"
        )


def _check_batch(train: TrainSettings, mini_batch: int, data_parallel: int) -> None:
    if train.prompts_per_step % mini_batch:
        works = _divisors(train.prompts_per_step, train.prompts_per_step)
        raise SizingError(
            f"train.mini_batch_prompts is {mini_batch}, which does not divide prompts_per_step "
            f"{train.prompts_per_step}: {_nearest(mini_batch, works)} would"
        )
    rollouts = mini_batch * train.rollouts_per_prompt
    if rollouts % data_parallel:
        step = data_parallel
        nearest = sorted({max(step, rollouts // step * step), (rollouts // step + 1) * step})
        raise SizingError(
            f"a mini batch of {mini_batch} x {train.rollouts_per_prompt} = {rollouts} rollouts does not divide among "
            f"{data_parallel} data-parallel workers: {' or '.join(map(str, nearest))} rollouts would"
        )


def _nearest(value: int, works: list[int]) -> str:
    """The one or two working values around `value`, as text."""
    below = [n for n in works if n < value][-1:]
    above = [n for n in works if n > value][:1]
    return " or ".join(map(str, below + above)) or "none"
