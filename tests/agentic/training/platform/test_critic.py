"""The critic that verl loads where there is no flash attention, in a process with the environment of such a job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentic.training.environment import cpu_environment

LOAD = """
import json, sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM
import verl.workers.engine
from verl.utils import model

config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    tie_word_embeddings=False,
)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
config.num_labels = 1
critic = model.load_valuehead_model(sys.argv[1], torch.float32, config, False)
values = critic(input_ids=torch.arange(12).reshape(2, 6)).logits
by = model.load_valuehead_model.__module__
print(json.dumps({"shape": values.shape, "finite": bool(values.isfinite().all()), "by": by}))
"""


def load(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOAD, str(folder)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.mark.timeout(240)
def test_a_critic_without_flash_attention_has_a_value_for_each_token(tmp_path: Path) -> None:
    done = load(tmp_path, cpu_environment(1, has_critic=True))
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"shape": [2, 6, 1], "finite": True, "by": "agentic.training.platform.critic"}


@pytest.mark.timeout(240)
def test_verls_own_asks_for_flash_attention_whatever_the_machine_has(tmp_path: Path) -> None:
    """When this no longer holds, our module has nothing left to do."""
    done = load(tmp_path, cpu_environment(1))
    assert done.returncode != 0
    assert "flash_attn" in done.stderr or "FlashAttention" in done.stderr
