"""Whether a Hugging Face folder is whole.

Whole means: `config.json` parses; a tokenizer is there; every shard that the index names is there, or the single
`model.safetensors` when there is no index; each shard has the size that its own header says, and each tensor is in
the shard that the index says. A present `config.json` alone says nothing: clients fetch it first.
"""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentic.models.errors import ModelIncomplete

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER_BYTES = 100_000_000
"""The format's own limit."""


def find_problems(folder: Path) -> list[str]:
    """What is missing or wrong, one line each; empty for a whole model."""
    problems = [*_config_problems(folder)]
    if not any((folder / name).is_file() for name in TOKENIZERS):
        problems.append(f"no tokenizer (none of {', '.join(TOKENIZERS)})")
    index = folder / INDEX
    if not index.is_file():
        return [*problems, *_shard_problems(folder / SINGLE, ())]
    try:
        shards = _shards_of(json.loads(index.read_bytes()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return [*problems, f"{INDEX} is cut or no index"]
    for name, tensors in sorted(shards.items()):
        problems += _shard_problems(folder / name, tensors)
    return problems


def require_complete(folder: Path) -> None:
    problems = find_problems(folder)
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise ModelIncomplete(f"{folder.name} is not complete: {problems[0]}{more}: run the step again to go on")


def count_parameters(folder: Path) -> int:
    """From the shards' headers, without reading weights."""
    headers = [_read_header(path)[1] for path in sorted(folder.glob("*.safetensors"))]
    return sum(math.prod(tensor["shape"]) for header in headers for tensor in header.values())


def _config_problems(folder: Path) -> list[str]:
    try:
        json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        return ["config.json is missing"]
    except ValueError:
        return ["config.json is cut or no JSON"]
    return []


def _shards_of(index: Mapping[str, Any]) -> dict[str, list[str]]:
    shards: dict[str, list[str]] = {}
    for tensor, name in index["weight_map"].items():
        if "/" in name:
            raise ValueError(name)
        shards.setdefault(name, []).append(tensor)
    return shards


def _shard_problems(path: Path, tensors: tuple[str, ...] | list[str]) -> list[str]:
    if not path.is_file():
        return [f"{path.name} is missing"]
    try:
        expected, header = _read_header(path)
    except ValueError:
        return [f"{path.name} is cut: its header cannot be read"]
    size = path.stat().st_size
    if size != expected:
        return [f"{path.name} has {size} bytes of {expected}"]
    absent = [tensor for tensor in tensors if tensor not in header]
    return [f"{path.name} lacks {absent[0]}, which {INDEX} says it has"] if absent else []


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """The size that the whole file must have, and the tensors' entries."""
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            raise ValueError(path.name)
        (length,) = _LENGTH.unpack(start)
        if length > _LONGEST_HEADER_BYTES:
            raise ValueError(path.name)
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    return _LENGTH.size + length + end, header
