"""Failures of the proxy; a tree of its own, since the proxy imports nothing of ours.

    ProxyError
    ├── RequestRefused            answered to the agent; carries the HTTP status and the OpenAI-style code
    │   ├── InvalidRequest        400: malformed, or asks for what the proxy cannot do exactly
    │   ├── Unauthorized          401: no key, or not this session's key
    │   ├── UnknownSession        404: never opened, or dropped
    │   ├── SessionSealed         410: nothing commits after seal (410, since SDKs retry 409)
    │   ├── ContextOverflow       400 context_length_exceeded: no room left in the session's budget
    │   ├── CallLimitReached      400: the session's number of calls or sampled tokens is used up
    │   ├── TooManyCalls          429: as many generations of the session run as may
    │   ├── TooManySessions       503: this process holds as many sessions as it may
    │   ├── BodyTooLarge          413: the body is larger than the session or the proxy takes
    │   ├── CaptureUnavailable    503: the call cannot be recorded (disk full), so it is not answered; SDKs retry it
    │   ├── GenerationFailed      502: the engine failed or gave no tokens; SDKs retry it
    │   ├── HttpRefused           404, 405 and their like: what HTTP itself refuses
    │   ├── InternalFailure       500: the proxy's own fault; its log says more
    │   └── WorkerUnavailable     503: the process of a fleet that owns the session is being restarted; SDKs retry it
    ├── SessionConflict           the same session id opened again with another specification
    ├── EngineError               what an engine raises; the edge turns it into GenerationFailed
    │   └── EngineRefused         it will never do this (constraint, prompt too long): InvalidRequest or ContextOverflow
    ├── RendererError             this tokenizer or template cannot be rendered exactly
    ├── JournalError              a record cannot be written or is not what it should be
    │   └── DamagedJournal        what is written there makes no session; the file is set aside
    └── ControlError              the control plane answered with a failure (raised by ControlClient)

Every message is one line: what is wrong, which value, what to do.
"""


class ProxyError(Exception):
    """Base of everything that the proxy raises on purpose."""


class RequestRefused(ProxyError):
    """A request that gets an error reply; subclasses fix status, code and type."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def release_frames(error: BaseException) -> None:
    """Let go of the frames that an error that was dealt with came through, and its causes.

    A frame that knows the error, as one does that has made it before raising it, is known by the error in turn. So
    frames would stay until the collector comes by, and with them a call's body, messages and plan.
    """
    left: list[BaseException | None] = [error]
    released: set[int] = set()
    while left:
        error_or_none = left.pop()
        if error_or_none is not None and id(error_or_none) not in released:
            released.add(id(error_or_none))
            error_or_none.__traceback__ = None
            left += [error_or_none.__cause__, error_or_none.__context__]


class InvalidRequest(RequestRefused):
    """Malformed, or asks for something that cannot be captured exactly."""


class Unauthorized(RequestRefused):
    """No key, or a key that does not belong to this session."""

    status = 401
    code = "invalid_api_key"
    kind = "authentication_error"


class UnknownSession(RequestRefused):
    """The session was never opened here, or was dropped."""

    status = 404
    code = "session_not_found"
    kind = "not_found_error"


class SessionSealed(RequestRefused):
    """The session is sealed or being sealed."""

    status = 410
    code = "session_sealed"


class ContextOverflow(RequestRefused):
    """The session's prompt or response room is used up."""

    code = "context_length_exceeded"


class CallLimitReached(RequestRefused):
    """The session has made all the calls, or sampled all the tokens, that it may."""

    code = "call_limit_reached"


class TooManyCalls(RequestRefused):
    """As many generations of the session run as may."""

    status = 429
    code = "too_many_calls"
    kind = "rate_limit_error"


class TooManySessions(RequestRefused):
    """The process holds as many sessions as it may."""

    status = 503
    code = "too_many_sessions"
    kind = "server_error"


class BodyTooLarge(RequestRefused):
    """The request's body is larger than the session or the proxy takes."""

    status = 413
    code = "request_too_large"


class CaptureUnavailable(RequestRefused):
    """The call cannot be recorded now, so it is not made or not answered."""

    status = 503
    code = "capture_unavailable"
    kind = "server_error"


class GenerationFailed(RequestRefused):
    """The engine failed; asking again may succeed."""

    status = 502
    code = "generation_failed"
    kind = "server_error"


class HttpRefused(RequestRefused):
    """No such path, method or model."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class InternalFailure(RequestRefused):
    """The proxy's own fault."""

    status = 500
    code = "internal_error"
    kind = "server_error"


class WorkerUnavailable(RequestRefused):
    """The process that owns the session does not answer; it is being restarted."""

    status = 503
    code = "worker_unavailable"
    kind = "server_error"
    retry_after_seconds = 1


class SessionConflict(ProxyError):
    """Opened again with a specification that differs from the first."""


class EngineError(ProxyError):
    """The engine is unreachable, refused the prompt, or answered out of contract."""


class EngineRefused(EngineError):
    """The engine understood the request and will not do it however often it is asked."""

    def __init__(self, message: str, is_context_overflow: bool = False, is_the_sessions: bool = False) -> None:
        """`is_the_sessions`: the session's own sampling is refused, whatever its client asks for."""
        super().__init__(message)
        self.is_context_overflow = is_context_overflow
        self.is_the_sessions = is_the_sessions


class RendererError(ProxyError):
    """Tokenizer or chat template cannot be used token-exactly."""


class JournalError(ProxyError):
    """A journal record cannot be written, or does not belong where it is."""


class DamagedJournal(JournalError):
    """The records of a session are none, or make no session."""


class ControlError(ProxyError):
    """The control plane answered with a failure."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
