"""What a proxy counts. Plain numbers that are added to where things happen; turned into a text only when asked for.

Every number is a sum over the process's life or a count of what is there now, so those of several processes add up.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

PREFIX = "agentic_proxy_"
GAUGES = frozenset(["sessions_open", "calls_running", "paused"])
"""What may go down again; everything else is a counter."""


class ProxyMetrics(BaseModel):
    """The counters of a proxy; each field's text is its help."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    sessions_open: int = 0
    """Sessions that take calls now"""
    calls_running: int = 0
    """Generations under way now"""
    paused: int = 0
    """Processes in which sampling is paused now"""
    sessions_opened: int = 0
    """Sessions opened"""
    sessions_recovered: int = 0
    """Open sessions taken up from the journal"""
    sessions_sealed: int = 0
    """Sessions sealed, expired ones included"""
    sessions_expired: int = 0
    """Sessions that nobody sealed in time"""
    sessions_incomplete: int = 0
    """Sealed sessions in which capture lost something"""
    calls_started: int = 0
    """Generations started"""
    calls_answered: int = 0
    """Generations that gave a whole reply"""
    calls_cut: int = 0
    """Generations of which no whole reply came"""
    calls_abandoned: int = 0
    """Generations aborted since their client went away"""
    calls_refused: int = 0
    """Generations that the engine refused for what their client asked"""
    calls_interrupted: int = 0
    """Times that a generation was stopped for new weights and resumed"""
    requests_joined: int = 0
    """Requests that were answered by the generation of an earlier one"""
    requests_refused: int = 0
    """Requests answered with an error"""
    prompt_tokens: int = 0
    """Tokens sent to the engine"""
    prompt_tokens_encoded: int = 0
    """Tokens sent to the engine that were not held already"""
    sampled_tokens: int = 0
    """Tokens that the engine gave"""


def to_text(metrics: ProxyMetrics) -> str:
    """Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics))
    return generate_latest(registry).decode()


def from_text(text: str) -> ProxyMetrics:
    """The numbers of a text, those of several processes together too; what is not ours is left out."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        name = series.partition("{")[0]
        field = name.removeprefix(PREFIX).removesuffix("_total")
        if name.startswith(PREFIX) and field in ProxyMetrics.model_fields:
            values[field] = values.get(field, 0) + int(float(value))
    return ProxyMetrics(**values)


class _Collector:
    """What Prometheus' client asks for samples."""

    def __init__(self, metrics: ProxyMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, help_text, value in _samples(self._metrics):
            kind = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
            yield kind(PREFIX + name, help_text, value=value)


def _samples(metrics: ProxyMetrics) -> Iterable[tuple[str, str, int]]:
    for name, field in ProxyMetrics.model_fields.items():
        yield name, field.description or name, getattr(metrics, name)
