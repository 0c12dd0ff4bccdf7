"""The tiny Llama: its configuration, and the forward pass that the warm start trains with.

`token_logprobs` computes what `LlamaForCausalLM` computes, from the same weights, at the positions that are asked for
alone; `check_same_as_hub_model` refuses to go on when the two differ.
"""

from typing import Any

import torch
from torch.nn import functional

from agentic.models.errors import ModelError

HEAD_SIZE = 32
_ROPE_BASE = 10000.0


def make_network(tokenizer: Any, hidden: int, layers: int, seed: int) -> Any:
    """A `LlamaForCausalLM` with tied embeddings, initialized from the seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_SIZE,
        num_key_value_heads=hidden // HEAD_SIZE,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    network = LlamaForCausalLM(config).float()
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    network.generation_config.pad_token_id = tokenizer.pad_token_id
    return network


def token_logprobs(network: Any, ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the tokens marked in `wanted` [rows, length], flat."""
    marked = wanted[:, 1:].bool()
    states = hidden_states(network, ids)[:, :-1][marked]
    logits = states @ network.model.embed_tokens.weight.T
    return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:][marked][:, None])[:, 0]


def hidden_states(network: Any, ids: torch.Tensor) -> torch.Tensor:
    """The last layer's states; rows are padded on the right, so that causal attention needs no mask."""
    states = network.model.embed_tokens(ids)
    cosine, sine = _rotation(ids.shape[1])
    for layer in network.model.layers:
        states = states + _attend(layer, _normalize(states, layer.input_layernorm), cosine, sine)
        states = states + layer.mlp(_normalize(states, layer.post_attention_layernorm))
    return _normalize(states, network.model.norm)


def check_same_as_hub_model(network: Any, ids: torch.Tensor) -> None:
    with torch.no_grad():
        ours = hidden_states(network, ids) @ network.model.embed_tokens.weight.T
        difference = float((ours - network(ids).logits).abs().max())
    if difference > 1e-4:
        raise ModelError(f"the training forward pass differs from transformers' by {difference:.2e}: check the pin")


def _attend(layer: Any, states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    attention, (rows, length, width) = layer.self_attn, states.shape
    query, key, value = (
        project(states).view(rows, length, -1, HEAD_SIZE).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    mixed = functional.scaled_dot_product_attention(
        _rotate(query, cosine, sine), _rotate(key, cosine, sine), value, is_causal=True
    )
    projected: torch.Tensor = attention.o_proj(mixed.transpose(1, 2).reshape(rows, length, width))
    return projected


def _normalize(states: torch.Tensor, norm: Any) -> torch.Tensor:
    return functional.rms_norm(states, (states.shape[-1],), norm.weight, norm.variance_epsilon)


def _rotation(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    speeds = _ROPE_BASE ** (-torch.arange(0, HEAD_SIZE, 2).float() / HEAD_SIZE)
    angles = torch.arange(length).float()[:, None] * speeds
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def _rotate(states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, -1)
    return states * cosine + torch.cat([-second, first], -1) * sine
