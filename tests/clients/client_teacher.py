"""Teacher forcing: the log-probabilities of recorded tokens, computed anew from the weights by transformers.

Independent of the engine: one forward pass over each trajectory's ids, in float32, and the session's sampling applied
to it in the order in which vLLM does: temperature, top_k, top_p.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentic.proxy import Sampling, Trajectory

if TYPE_CHECKING:
    import torch


def largest_difference(model: Path, trajectories: Sequence[Trajectory], sampling: Sampling) -> tuple[float, int]:
    """The largest difference between recorded and recomputed log-probabilities, and how many were compared."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    differences: list[float] = []
    with torch.inference_mode():
        for trajectory in trajectories:
            start = len(trajectory.prompt_ids)
            places = [start + n for n, mask in enumerate(trajectory.response_mask) if mask]
            ids = torch.tensor([[*trajectory.prompt_ids, *trajectory.response_ids]])
            states = network.model(ids).last_hidden_state[0, [place - 1 for place in places]]
            logprobs = torch.log_softmax(sampled_from(network.lm_head(states), sampling), dim=-1)
            for row, place in zip(logprobs, places, strict=True):
                recorded = trajectory.response_logprobs[place - start]
                differences.append(abs(float(row[ids[0, place]]) - recorded))
    return max(differences), len(differences)


def sampled_from(logits: "torch.Tensor", sampling: Sampling) -> "torch.Tensor":
    """The logits of the distribution that is sampled from; what cannot be sampled has minus infinity."""
    scaled = logits / (sampling.temperature or 1.0)  # greedy sampling divides by nothing
    ordered, places = scaled.sort(dim=-1, descending=True)
    if sampling.top_k > 0:
        ordered[:, sampling.top_k :] = float("-inf")
    if sampling.top_p < 1:
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        ordered[before >= sampling.top_p] = float("-inf")
    return ordered.scatter(-1, places, ordered)
