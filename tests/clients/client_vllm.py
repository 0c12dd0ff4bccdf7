"""Models for a real vLLM server without a GPU, and the server."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from proxy_tokens import QWEN_LIKE_TEMPLATE

from agentic.models.settings import SmolLM2Model
from agentic.models.smollm2 import convert_smollm2
from agentic.training.engine_server import serve
from agentic.training.settings import TrainSettings

LONG_CONTEXT_TOKENS = 65_536


def write_smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct in float32, from its package."""
    convert_smollm2(SmolLM2Model(), folder)
    return folder


def write_random_model(folder: Path, tokenizer_of: Path) -> Path:
    """A random Llama of 64k context with another model's tokenizer and a template that shows tools.

    What it says is noise, but it ends its turns: all hidden states share a direction that the end token's row in the
    output layer points along, so that each token ends the turn with a probability of a few percent.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    tokenizer.chat_template = QWEN_LIKE_TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LONG_CONTEXT_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        network.model.embed_tokens.weight.normal_(0, 1)
        network.model.embed_tokens.weight[:, 0] += 8
        network.lm_head.weight.normal_(0, 0.05)
        network.lm_head.weight[tokenizer.eos_token_id, 0] = 1.4
    network.save_pretrained(folder)
    return folder


@asynccontextmanager
async def vllm_server(model: Path, folder: Path) -> AsyncIterator[str]:
    """The base URL of a vLLM server on this machine's CPU, float32, with the model's whole context."""
    context_tokens = context_tokens_of(model)
    settings = TrainSettings(
        device="cpu", dtype="float32", max_prompt_tokens=context_tokens - 1024, max_response_tokens=1024
    )
    async with serve(
        model, settings, run_id="clients", workspace=folder, threads=2, log=folder / f"vllm-{model.name}.log"
    ) as url:
        yield url


def context_tokens_of(model: Path) -> int:
    """The longest context of a model."""
    return int(json.loads((model / "config.json").read_text())["max_position_embeddings"])
