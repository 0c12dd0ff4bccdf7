"""What the workers of a fleet are made of in tests: importable there, since a worker is another process."""

import sys
from collections.abc import Sequence

from proxy_rig import says

from agentic.proxy import CallSampling, ScriptedEngine, ScriptedReply

LONG_TOKENS = 20_000


def make_engine() -> ScriptedEngine:
    """Each generation says which call it is, in chunks, and takes a moment."""
    return ScriptedEngine(_in_chunks)


def make_slow_engine() -> ScriptedEngine:
    """The same, over some seconds."""
    return ScriptedEngine(_slow)


def make_long_engine() -> ScriptedEngine:
    """More text than sockets hold."""
    return ScriptedEngine(_long)


def make_talkative_engine() -> ScriptedEngine:
    """Prints more than a pipe holds, when it is made and for each generation."""
    sys.stdout.write("a library's greeting\n" * 5_000)

    def answer(prompt: Sequence[int], sampling: CallSampling, request_id: str) -> ScriptedReply:
        sys.stdout.write("a library's remark\n" * 5_000)
        return _in_chunks(prompt, sampling, request_id)

    return ScriptedEngine(answer)


def make_broken_engine() -> ScriptedEngine:
    """Cannot be made."""
    raise ValueError("this engine has no server")


def _slow(_prompt: Sequence[int], _sampling: CallSampling, request_id: str) -> ScriptedReply:
    return says(f"answer {request_id}", chunk_tokens=4, delay_seconds=0.4)


def _long(_prompt: Sequence[int], _sampling: CallSampling, _request_id: str) -> ScriptedReply:
    return says("x" * LONG_TOKENS, chunk_tokens=500)


def _in_chunks(_prompt: Sequence[int], _sampling: CallSampling, request_id: str) -> ScriptedReply:
    return says(f"answer {request_id}", chunk_tokens=8, delay_seconds=0.01)
