"""Settings of a proxy process: where it listens, what it accepts, where it journals."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class ProxySettings(BaseModel):
    """One proxy process. Both planes listen on loopback unless told otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address of the agent plane, the one that sandboxes reach."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the agent plane; 0 picks a free one."""
    advertised_host: str | None = None
    """Host name that agents are told; None means `host`. Needed when `host` is a wildcard address."""
    control_host: str = "127.0.0.1"
    """Address of the control plane, the one that trainers reach; never give it to a sandbox."""
    control_port: int = Field(0, ge=0, le=65535)
    """Port of the control plane; 0 picks a free one."""
    unix_socket: Path | None = None
    """Socket file on which the agent plane is served as well, to be bound into sandboxes without network; None:
    none."""
    max_body_bytes: int = Field(64 * 1024 * 1024, gt=0)
    """Largest request body; a conversation of 128k tokens is well below 1 MiB, tool schemas and margin included."""
    request_timeout_seconds: float = Field(1800.0, gt=0)
    """How long one generation may take before it is aborted; what it had sampled is kept with mask 0."""
    abandon_grace_seconds: float = Field(5.0, ge=0)
    """How long a generation goes on after its client went away, so that the client's retry joins it; then it is
    aborted, and what was sampled is kept with mask 0."""
    write_timeout_seconds: float = Field(60.0, gt=0)
    """How long a client may take nothing of a streamed reply before its connection is closed; the generation is not
    held up meanwhile."""
    read_timeout_seconds: float = Field(60.0, gt=0)
    """How long a client may take to send a request's body; then it is answered 408."""
    session_lifetime_seconds: float = Field(172800.0, gt=0)
    """How long a session may live if it does not say so itself: its key expires then, and if nobody sealed it the proxy
    does, as expired."""
    session_idle_seconds: float | None = Field(None, gt=0)
    """Seal a session as expired when neither a call nor a heartbeat came for so long; None: only its lifetime
    counts."""
    sealed_retention_seconds: float = Field(3600.0, ge=0)
    """How long a sealed session stays in memory if there is no journal to read it from again; with one it leaves at
    once."""
    max_sessions: int = Field(100_000, gt=0)
    """Open sessions of this process."""
    journal_directory: Path | None = None
    """Where sessions are journalled; None keeps them in memory only."""
    journal_fsync: bool = False
    """Whether a call is answered only after its record is on disk, not merely handed to the kernel."""
    owner_wait_seconds: float = Field(5.0, ge=0)
    """With several processes: how long a request waits for the process that owns its session while that is restarted,
    before it is answered 503 with Retry-After."""
    own_port: int | None = Field(None, ge=0, le=65535)
    """With several processes: a port of the first one's own, and the next numbers for the others; agents are told the
    port of the process that owns their session, so that their calls need not be passed on. 0 picks free ones; None:
    agents are told `port`, at which every session is reached either way. A process that is being restarted keeps its
    port: what connects there meanwhile waits until it listens again, not only for `owner_wait_seconds`. One process
    alone has no use for it, and leaves it."""
    tracing: bool = False
    """Make an OpenTelemetry span of each call; needs `opentelemetry-api`, and an SDK to see them. The W3C trace headers
    of agents' requests are passed on to the engine either way."""
