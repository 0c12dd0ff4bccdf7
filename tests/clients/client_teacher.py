"""Teacher forcing: the log-probabilities of recorded tokens, computed anew from the weights by transformers.

Independent of the engine: one forward pass over each trajectory's ids, in float32.
"""

from collections.abc import Sequence
from pathlib import Path

from agentic.proxy import Trajectory


def largest_difference(model: Path, trajectories: Sequence[Trajectory], temperature: float) -> tuple[float, int]:
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
            logprobs = torch.log_softmax(network.lm_head(states) / temperature, dim=-1)
            for row, place in zip(logprobs, places, strict=True):
                recorded = trajectory.response_logprobs[place - start]
                differences.append(abs(float(row[ids[0, place]]) - recorded))
    return max(differences), len(differences)
