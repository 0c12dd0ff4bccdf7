"""verl's client of its rollout servers, as far as the proxy uses it, with a scripted policy behind it.

Fakes the servers and the weights: the n-th turn of any conversation gets the n-th reply, sampled by policy version 7.
"""

from types import SimpleNamespace
from typing import Any

import proxy_tokens


class ScriptedClient:
    """Plain data, so that Ray can carry it to the proxy's actor, as it carries verl's."""

    def __init__(self, *replies: str) -> None:
        self._replies = replies

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        tokenizer = proxy_tokens.make_tokenizer()
        turn = tokenizer.decode(prompt_ids, skip_special_tokens=False).count("<|im_start|>assistant")
        ids = [*tokenizer.encode(self._replies[turn - 1]).ids, proxy_tokens.END]
        return SimpleNamespace(
            token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields={"global_steps": 7}
        )
