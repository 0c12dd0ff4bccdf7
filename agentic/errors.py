"""Failures that end a step, in two kinds: worth another try, or not.

    AgenticError
    ├── PermanentError   bad input or an impossible request: exit code 78, never retried
    └── TransientError   may succeed when tried again: exit code 75, retried with back-off

Every message is one line that says what is wrong, which value, and what to do. Rooms derive their own errors from these
two; `steps/contract.py` is the one place that turns them into exit codes. `agentic.proxy` has its own tree, since it
imports nothing of ours.
"""

from typing import NamedTuple


class AgenticError(Exception):
    """Base of all failures that this project raises on purpose."""


class PermanentError(AgenticError):
    """Trying again cannot help: bad input, missing part, impossible combination."""


class TransientError(AgenticError):
    """Trying again can help: a port taken, a download cut, a full disk that may be freed."""


class Problem(NamedTuple):
    """One finding of a preflight check."""

    message: str
    """One line: what is wrong, which value, what to do."""
    transient: bool = False
    """Whether trying again without a change can help."""
