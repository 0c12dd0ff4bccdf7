"""Engines: scripted, vLLM over HTTP, verl's client. The last two import what they need when built."""

from .base import Chunk, Engine, Finish, session_of
from .scripted import ScriptedEngine, ScriptedReply

__all__ = ["Chunk", "Engine", "Finish", "ScriptedEngine", "ScriptedReply", "session_of"]
