"""Sizing fills in what is left to it, and refuses what cannot run with the nearest that can."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentic.training.errors import SizingError
from agentic.training.settings import TrainSettings
from agentic.training.sizing import ModelShape, read_shape, resolve

QWEN_7B = ModelShape(parameters=7_615_616_512, attention_heads=28, key_value_heads=4)


def test_a_7b_model_on_eight_80_gib_gpus_needs_neither_tensor_parallelism_nor_offload() -> None:
    sizing = resolve(TrainSettings(), QWEN_7B)

    assert (sizing.total_gpus, sizing.tensor_parallel, sizing.offload) == (8, 1, False)
    assert sizing.gpu_memory_utilization == 0.6


def test_a_7b_model_on_one_24_gib_gpu_is_offloaded_and_refused_as_one_engine() -> None:
    with pytest.raises(SizingError, match=r"7\.6B parameters does not fit 1 GPUs of 24 GiB"):
        resolve(TrainSettings(gpus_per_node=1, gpu_memory_gib=24), QWEN_7B)


def test_a_7b_model_on_two_48_gib_gpus_is_offloaded_and_gets_a_small_engine_share() -> None:
    sizing = resolve(TrainSettings(gpus_per_node=2, gpu_memory_gib=48), QWEN_7B)

    assert sizing.offload
    assert sizing.gpu_memory_utilization == 0.4
    assert sizing.host_memory_gib >= 55, "a 7B model with offload needs at least 55 GiB of host memory"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensor_parallel": 3}, "train.tensor_parallel is 3 .* allow 2 or 4"),
        ({"tensor_parallel": 16}, "train.tensor_parallel is 16 .* allow 4"),
        ({"sequence_parallel": 3}, "train.sequence_parallel is 3 .* allow 2 or 4"),
        ({"mini_batch_prompts": 24}, "train.mini_batch_prompts is 24, .* 16 or 32 would"),
        ({"prompts_per_step": 3, "rollouts_per_prompt": 3}, "9 rollouts does not divide among 8 .* 8 or 16 rollouts"),
        (
            {"max_tokens_per_gpu": 1000, "max_prompt_tokens": 900, "max_response_tokens": 200},
            "up to 1100 tokens: raise",
        ),
    ],
)
def test_an_impossible_size_names_the_nearest_that_work(changes: dict[str, int], says: str) -> None:
    short = {"max_prompt_tokens": 512, "max_response_tokens": 512}
    with pytest.raises(SizingError, match=says) as raised:
        resolve(TrainSettings(**{**short, **changes}), QWEN_7B)
    assert "\n" not in str(raised.value)


@given(
    gpus=st.sampled_from([1, 2, 4, 8]),
    nodes=st.integers(1, 4),
    heads=st.sampled_from([4, 8, 12, 14, 16, 28, 32]),
    tensor_parallel=st.integers(1, 16),
    prompts=st.integers(1, 64),
    rollouts=st.integers(1, 16),
)
def test_what_sizing_accepts_divides_and_what_it_names_instead_is_accepted(
    gpus: int, nodes: int, heads: int, tensor_parallel: int, prompts: int, rollouts: int
) -> None:
    shape = ModelShape(parameters=10**8, attention_heads=heads, key_value_heads=heads)
    fixed = {"nodes": nodes, "gpus_per_node": gpus, "max_prompt_tokens": 64, "max_response_tokens": 64}
    fixed |= {"algorithm": "ppo"}
    batch = {"prompts_per_step": prompts, "rollouts_per_prompt": rollouts}
    try:
        sizing = resolve(TrainSettings(tensor_parallel=tensor_parallel, **fixed, **batch), shape)
    except SizingError as error:
        named = re.search(r"allow (\d+)(?: or (\d+))?$", str(error))
        if named:
            for value in filter(None, named.groups()):
                fits = {"prompts_per_step": nodes * gpus, "rollouts_per_prompt": 1}
                resolve(TrainSettings(tensor_parallel=int(value), **fixed, **fits), shape)
        return
    assert heads % sizing.tensor_parallel == 0
    assert gpus % sizing.tensor_parallel == 0
    assert prompts * rollouts % sizing.data_parallel == 0


def test_a_models_shape_is_counted_from_its_configuration(tmp_path: Path) -> None:
    config = {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
    config |= {"intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))

    shape = read_shape(tmp_path)

    assert shape.parameters == pytest.approx(QWEN_7B.parameters, rel=0.001)
    assert shape.key_value_heads == 4


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SizingError, match=r"config.json is missing: download the model first"):
        read_shape(tmp_path)


def test_a_group_of_one_is_refused_where_groups_are_compared() -> None:
    with pytest.raises(ValidationError, match="grpo compares the rollouts of a prompt: give rollouts_per_prompt 2"):
        TrainSettings(rollouts_per_prompt=1)
    assert TrainSettings(algorithm="ppo", rollouts_per_prompt=1).rollouts_per_prompt == 1
    with pytest.raises(ValidationError, match="keep_checkpoints"):
        TrainSettings(keep_checkpoints=1)
