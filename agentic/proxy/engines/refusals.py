"""Tells by a server's words whether it will ever do what was asked."""

import re

from ..errors import EngineError, EngineRefused

OVERFLOW = re.compile(r"context length|maximum model length|max_model_len|maximum allowed length", re.IGNORECASE)
"""How vLLM, SGLang and verl say that prompt and wanted tokens are more than the model's context."""


def is_overflow(message: str) -> bool:
    """Whether a message says that the prompt is too long."""
    return OVERFLOW.search(message) is not None


def refusal_or_error(message: str, is_refusal: bool) -> EngineError:
    """The error for a server's message."""
    return EngineRefused(message, is_context_overflow=is_overflow(message)) if is_refusal else EngineError(message)
