"""verl's critic on a machine without flash attention.

verl 0.9.1 loads every critic with `flash_attention_2`, whatever the model's configuration asks for
(`load_valuehead_model` in verl.utils.model). Loaded into its workers as the platform is, by
`VERL_USE_EXTERNAL_MODULES`, this module puts a function in that one's place, which takes torch's own attention and is
the same otherwise. Without trl, as verl's own: the model gets a head of one value for each token.
"""

from typing import Any

import torch
import verl.utils.model
from transformers import AutoModelForTokenClassification, PretrainedConfig


def load_critic(
    local_path: str, torch_dtype: torch.dtype, model_config: PretrainedConfig, trust_remote_code: bool
) -> Any:
    """What `load_valuehead_model` returns."""
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )


verl.utils.model.load_valuehead_model = load_critic
