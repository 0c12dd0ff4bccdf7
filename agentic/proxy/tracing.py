"""The trace that an agent's request belongs to, by the W3C's headers, carried on to the engine.

Without OpenTelemetry the headers are passed on as they came. With it (a setting), each call is a span of the agent's
trace, and the engine is told that span instead.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .errors import ProxyError

HEADERS = ("traceparent", "tracestate", "baggage")

_headers: ContextVar[Mapping[str, str]] = ContextVar("agentic_proxy_trace_headers", default={})  # noqa: B039 - read only


def trace_headers() -> Mapping[str, str]:
    """What an engine adds to the request of the call under way; empty if the agent sent no trace."""
    return _headers.get()


class Tracing:
    """Opens the scope of a request."""

    def __init__(self, with_spans: bool) -> None:
        self._tracer: Any = _make_tracer() if with_spans else None

    @contextmanager
    def request(self, name: str, session_id: str, headers: Mapping[str, str]) -> Iterator[None]:
        """What happens within belongs to the trace that the headers name."""
        carried = {
            header: headers[header] for header in HEADERS if headers.get(header, "").isascii() and header in headers
        }
        if self._tracer is None:
            if not carried:
                yield
                return
            token = _headers.set(carried)
            try:
                yield
            finally:
                _headers.reset(token)
            return
        with self._span(name, session_id, carried):
            yield

    @contextmanager
    def _span(self, name: str, session_id: str, carried: Mapping[str, str]) -> Iterator[None]:
        from opentelemetry import propagate, trace

        parent = propagate.extract(carried)
        attributes = {"agentic.session": session_id}
        kind = trace.SpanKind.SERVER
        with self._tracer.start_as_current_span(name, context=parent, kind=kind, attributes=attributes):
            told: dict[str, str] = {}
            propagate.inject(told)
            token = _headers.set(told)
            try:
                yield
            finally:
                _headers.reset(token)


def _make_tracer() -> Any:
    try:
        from opentelemetry import trace
    except ModuleNotFoundError as error:
        raise ProxyError("tracing is on but opentelemetry-api is not installed: install it or turn it off") from error
    return trace.get_tracer("agentic.proxy")
