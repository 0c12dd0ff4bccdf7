"""API dialects: what agents speak, to and from one internal request and reply.

A dialect is a module here and a line in `make_dialects`; the agent plane mounts what that gives.
"""

from typing import Any

from .base import Dialect

__all__ = ["Dialect", "make_dialects"]


def make_dialects() -> tuple[Dialect[Any], ...]:
    """Every API that the agent plane serves; the first is also that of errors outside all of them."""
    from .chat import ChatDialect
    from .completions import CompletionsDialect
    from .messages import MessagesDialect
    from .responses import ResponsesDialect

    return (ChatDialect(), ResponsesDialect(), MessagesDialect(), CompletionsDialect())
