"""The one place that turns an exception into an exit code and a line.

75 = trying again may help (retried by the workflow), 78 = it cannot, 130 = interrupted, 143 = told to end (retried: a
pod that is moved gets SIGTERM). 64 and 65 are avoided, Argo's executor uses them itself.
"""

import errno
import os
import re
from typing import NamedTuple

from pydantic import ValidationError

from agentic.errors import PermanentError, TransientError

TRANSIENT = 75
PERMANENT = 78
INTERRUPTED = 130
TERMINATED = 143

_FULL = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
_BUSY = frozenset([errno.EADDRINUSE, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.EIO, errno.ESTALE])

_RUST_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""How libraries written in Rust (safetensors, tokenizers) name the system's error inside of their own."""


class Failure(NamedTuple):
    """How a step ends that did not succeed."""

    exit_code: int
    line: str
    expected: bool = True
    """Whether the line says all; otherwise the traceback belongs into the log."""


def classify(error: BaseException) -> Failure:
    """The exit code and the line for an exception that left a step."""
    if isinstance(error, BaseExceptionGroup):
        return classify(error.exceptions[0])
    match error:
        case PermanentError():
            return Failure(PERMANENT, _one_line(error))
        case TransientError():
            return Failure(TRANSIENT, _one_line(error))
        case ValidationError():
            return Failure(PERMANENT, describe_validation(error))
        case ModuleNotFoundError(name=name):
            return Failure(PERMANENT, f"the Python package {name} is missing: install the project's extra cpu or gpu")
        case KeyboardInterrupt():
            return Failure(INTERRUPTED, "interrupted")
        case MemoryError():
            return Failure(TRANSIENT, "memory ran out: free some, or give the step more")
        case OSError():
            return _classify_os_error(error)
    wrapped = _RUST_OS_ERROR.search(str(error))
    if wrapped:
        number = int(wrapped.group(1))
        return _classify_os_error(OSError(number, os.strerror(number)))
    return Failure(PERMANENT, f"unexpected {type(error).__name__}: {_one_line(error)} (traceback in the log)", False)


def _classify_os_error(error: OSError) -> Failure:
    place = f" at {error.filename}" if error.filename else ""
    reason = error.strerror or _one_line(error) or type(error).__name__
    if error.errno in _FULL:
        return Failure(TRANSIENT, f"no space left{place}: free disk space, then go on")
    if error.errno in _BUSY or isinstance(error, ConnectionError | TimeoutError):
        return Failure(TRANSIENT, f"{reason}{place}: try again")
    if isinstance(error, FileNotFoundError):
        return Failure(PERMANENT, f"missing file{place}: run the step that makes it first")
    if isinstance(error, PermissionError):
        return Failure(PERMANENT, f"no permission{place}: make it writable for this user")
    return Failure(PERMANENT, f"{reason}{place}", False)


def describe_validation(error: ValidationError) -> str:
    """The first finding of a validation as one line, with the number of further ones."""
    findings = error.errors(include_url=False)
    first = findings[0]
    path = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{message}{more}"
    given = "" if first["type"] == "missing" else f", not {first['input']!r}"
    return f"{path or error.title}: {message[:1].lower()}{message[1:]}{given[:120]}{more}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
