"""Which HTTP engine a server at an address needs; what the command line and process supervisors build engines with."""

import urllib.error
import urllib.request
from typing import Literal

from ..errors import EngineError
from .base import Engine
from .http import bearer_header

type EngineKind = Literal["auto", "vllm", "sglang"]

PROBES: dict[str, EngineKind] = {"/version": "vllm", "/model_info": "sglang", "/get_model_info": "sglang"}
"""Paths that one of the servers answers and the other does not."""
NO_KEY = (401, 403)
PROBE_SECONDS = 5.0


def make_http_engine(
    url: str, kind: EngineKind, model: str | None = None, version: int = 0, api_key: str | None = None
) -> Engine:
    """An engine for the server at `url`, whose kind "auto" asks it; `api_key` is the server's, if it wants one."""
    from .sglang_http import SglangHttpEngine
    from .vllm_http import VllmHttpEngine

    if (find_kind(url, api_key) if kind == "auto" else kind) == "sglang":
        return SglangHttpEngine(url, version, api_key)
    return VllmHttpEngine(url, model, version, api_key)


def find_kind(url: str, api_key: str | None = None) -> EngineKind:
    """What serves at `url`."""
    base = url.rstrip("/").removesuffix("/v1")
    for path, kind in PROBES.items():
        try:
            request = urllib.request.Request(base + path, headers=bearer_header(api_key))
            with urllib.request.urlopen(request, timeout=PROBE_SECONDS):
                return kind
        except urllib.error.HTTPError as error:
            if error.code in NO_KEY:
                raise EngineError(f"{base} answered {error.code}: give the API key that it was started with") from error
        except OSError as error:
            raise EngineError(f"no answer from {base}: {error}: start the engine first, or give its kind") from error
    raise EngineError(
        f"{base} answers neither {' nor '.join(PROBES)}: is it a vLLM or SGLang server? Else give its kind"
    )
