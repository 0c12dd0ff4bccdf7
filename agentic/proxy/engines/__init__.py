"""Engines: scripted, vLLM and SGLang over HTTP, verl's client. All but the first are imported where they are used."""

from .base import Chunk, Engine, Finish, session_of
from .scripted import ScriptedEngine, ScriptedReply

__all__ = ["Chunk", "Engine", "Finish", "ScriptedEngine", "ScriptedReply", "session_of"]
