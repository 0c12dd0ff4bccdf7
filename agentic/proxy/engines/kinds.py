"""Which HTTP engine a server at an address needs; what the command line and process supervisors build engines with."""

import urllib.error
import urllib.request
from typing import Literal

from ..errors import EngineError
from .base import Engine

type EngineKind = Literal["auto", "vllm", "sglang"]

PROBES: dict[str, EngineKind] = {"/version": "vllm", "/model_info": "sglang", "/get_model_info": "sglang"}
"""Paths that one of the servers answers and the other does not."""
PROBE_SECONDS = 5.0


def make_http_engine(url: str, kind: EngineKind, model: str | None = None, version: int = 0) -> Engine:
    """An engine for the server at `url`, whose kind "auto" asks it."""
    from .sglang_http import SglangHttpEngine
    from .vllm_http import VllmHttpEngine

    if (find_kind(url) if kind == "auto" else kind) == "sglang":
        return SglangHttpEngine(url, version)
    return VllmHttpEngine(url, model, version)


def find_kind(url: str) -> EngineKind:
    """What serves at `url`."""
    base = url.rstrip("/").removesuffix("/v1")
    for path, kind in PROBES.items():
        try:
            with urllib.request.urlopen(base + path, timeout=PROBE_SECONDS):
                return kind
        except urllib.error.HTTPError:
            continue
        except OSError as error:
            raise EngineError(f"no answer from {base}: {error}: start the engine first, or give its kind") from error
    raise EngineError(
        f"{base} answers neither {' nor '.join(PROBES)}: is it a vLLM or SGLang server? Else give its kind"
    )
