"""vLLM's worker extension on a CPU: weights that can be loaded again.

vLLM's CPU build packs each Linear weight into a oneDNN handle and replaces `layer.weight` by an empty tensor, so that a
later weight sync has nothing to write to and the trainer hangs. Keeping the plain weight costs one copy; verl calls
`process_weights_after_loading` after each sync, which packs it anew.

Used by name: `rollout.engine_kwargs.vllm.worker_extension_cls`.
"""

from collections.abc import Callable
from typing import Any

import torch
import vllm.model_executor.layers.utils as linear_layers
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


def _keep_weight(dispatch: Callable[..., None]) -> Callable[..., None]:
    def keep(layer: torch.nn.Module, remove_weight: bool) -> None:
        dispatch(layer, remove_weight=False)

    return keep


linear_layers.dispatch_cpu_unquantized_gemm = _keep_weight(linear_layers.dispatch_cpu_unquantized_gemm)


class CpuWorkerExtension(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """Copies weights out of verl's shared-memory bucket before they are loaded."""

    def _update_weights(self, weights: list[tuple[str, torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
        # On a GPU moving to the device copies; on a CPU it is a view of a bucket that is about to be overwritten.
        return super()._update_weights([(name, tensor.clone()) for name, tensor in weights], *args, **kwargs)
