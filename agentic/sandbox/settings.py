"""Which sandbox runs untrusted code on this machine, and within which limits.

One model for each provider, chosen by `provider`. Limits are per sandbox; they are ceilings, not reservations, so that
far more sandboxes can run than memory divided by the limit, as long as few of them use theirs at once.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agentic.settings import Settings

MIB = 1024 * 1024


class SandboxLimits(Settings):
    """What every provider bounds."""

    memory_mb: int = Field(768, ge=32)
    """Memory of all processes of a sandbox together, its scratch space in memory included, in MiB."""
    max_processes: int = Field(256, ge=8)
    """Processes and threads that exist at once in a sandbox."""
    cpus: float = Field(1.0, gt=0, le=1024)
    """CPU time per wall-clock time, in cores."""
    command_timeout_seconds: float = Field(600.0, gt=0)
    """For a command without a time limit of its own."""
    output_limit_bytes: int = Field(MIB, ge=1024)
    """Of standard output and of standard error each: the first and the last half are kept, the middle is left out."""
    download_limit_bytes: int = Field(1024 * MIB, ge=1024)
    """Of one file or folder that is copied out."""
    start_concurrency: int = Field(8, ge=1)
    """Sandboxes that start at the same moment; more wait their turn."""

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb * MIB


class BubblewrapSandbox(SandboxLimits):
    """Namespaces by bubblewrap over a root folder; the default."""

    provider: Literal["bubblewrap"] = "bubblewrap"
    scratch_mb: int = Field(256, ge=1)
    """Size of the private writable layer and of /dev/shm together, kept in memory, in MiB. Below `memory_mb`."""
    limits: Literal["cgroup", "none"] = "cgroup"
    """`none` gives up the limits on memory, processes and CPU where cgroups cannot be written, with a warning."""
    bwrap: str = "bwrap"
    """The program, looked up in PATH unless it is a path."""
    subordinate_uid: int = Field(1_879_048_192, ge=65536, le=4_294_836_223)
    """First of the 65,536 unprivileged user ids that sandboxes have outside when we run as root. No account of the
    machine may be among them."""

    @model_validator(mode="after")
    def _scratch_fits(self) -> Self:
        if self.scratch_mb * 2 > self.memory_mb:
            raise ValueError(
                f"sandbox.scratch_mb is {self.scratch_mb} but only half of sandbox.memory_mb ({self.memory_mb}) may go "
                "to scratch space: lower the first or raise the second"
            )
        return self


class ContainerSandbox(SandboxLimits):
    """What podman and docker have in common."""

    runtime: str | None = None
    """OCI runtime such as `runc`; None leaves the engine's own choice."""
    lease_seconds: int = Field(7200, ge=60)
    """A container ends by itself after so long, should its owner be killed and nobody sweep."""
    options: tuple[str, ...] = ()
    """More words for the engine's `run`, such as `--ulimit=nofile=20000`."""


class PodmanSandbox(ContainerSandbox):
    """Containers by podman."""

    provider: Literal["podman"] = "podman"
    program: str = "podman"
    """The program, looked up in PATH unless it is a path."""


class DockerSandbox(ContainerSandbox):
    """Containers by docker."""

    provider: Literal["docker"] = "docker"
    program: str = "docker"
    """The program, looked up in PATH unless it is a path."""


class UnsafeProcessSandbox(SandboxLimits):
    """Bare processes of this machine: no isolation and no limit but time and output. Warns whenever it is made."""

    provider: Literal["unsafe-process"] = "unsafe-process"


SandboxSettings = Annotated[
    BubblewrapSandbox | PodmanSandbox | DockerSandbox | UnsafeProcessSandbox, Field(discriminator="provider")
]
