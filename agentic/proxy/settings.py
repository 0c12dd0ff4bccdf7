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
    journal_directory: Path | None = None
    """Where sessions are journalled; None keeps them in memory only."""
    journal_fsync: bool = False
    """Whether a call is answered only after its record is on disk, not merely handed to the kernel."""
    owner_wait_seconds: float = Field(5.0, ge=0)
    """With several processes: how long a request waits for the process that owns its session while that is restarted,
    before it is answered 503 with Retry-After."""
