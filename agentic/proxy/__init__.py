"""The ProxyServer: agents' LLM calls go through it to an inference engine, and it records every token exactly.

A session is one rollout. An agent gets a base URL and a key for its session and talks an ordinary chat API; the proxy
owns tokenization and sampling, keeps what was sent and sampled as a graph of token deltas, and gives trajectories
(ids, mask, logprobs, policy versions) when the session is sealed. Boundaries: `engines` sample, `renderers` turn
messages into ids and back, `dialects` speak APIs, `journal` makes it durable; `graph` and `session` are pure.

Imports nothing of ours, and no ML package until an engine or renderer needs it. Names are loaded when they are first
used, so `agentic.proxy.settings` needs pydantic only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actor import ProxyServerActor
    from .client import ControlClient
    from .engines import Chunk, Engine, ScriptedEngine, ScriptedReply
    from .errors import ProxyError
    from .fleet import ProxyFleet
    from .journal import FileJournal, Journal, MemoryJournal
    from .models import CallSampling, Sampling, SealedSession, SessionHandle, SessionSpec, Trajectory
    from .renderers import Renderer, make_renderer
    from .server import ProxyServer
    from .settings import ProxySettings

__all__ = [
    "CallSampling",
    "Chunk",
    "ControlClient",
    "Engine",
    "FileJournal",
    "Journal",
    "MemoryJournal",
    "ProxyError",
    "ProxyFleet",
    "ProxyServer",
    "ProxyServerActor",
    "ProxySettings",
    "Renderer",
    "Sampling",
    "ScriptedEngine",
    "ScriptedReply",
    "SealedSession",
    "SessionHandle",
    "SessionSpec",
    "Trajectory",
    "make_renderer",
]

_MODULES = {
    "actor": ("ProxyServerActor",),
    "client": ("ControlClient",),
    "engines": ("Chunk", "Engine", "ScriptedEngine", "ScriptedReply"),
    "errors": ("ProxyError",),
    "fleet": ("ProxyFleet",),
    "journal": ("FileJournal", "Journal", "MemoryJournal"),
    "models": ("CallSampling", "Sampling", "SealedSession", "SessionHandle", "SessionSpec", "Trajectory"),
    "renderers": ("Renderer", "make_renderer"),
    "server": ("ProxyServer",),
    "settings": ("ProxySettings",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
