"""How the images of a task set are built."""

from pydantic import Field

from agentic.settings import Settings


class ImageSettings(Settings):
    """For building root folders on this machine."""

    base_images: tuple[str, ...] = ("agentic/base:local",)
    """What FROM may name; each stands for the base folder of this machine."""
    shards: int = Field(8, ge=1, le=64)
    """Parts that a task set is split into, at most; each is one parallel step of the workflow."""
    parallelism: int = Field(4, ge=1)
    """Images built at once within a shard."""
    run_timeout_seconds: float = Field(600.0, gt=0)
    """For each RUN instruction."""
    run_memory_mb: int = Field(2048, ge=128)
    """For each RUN instruction, in MiB."""
    run_output_bytes: int = Field(64 * 1024, ge=1024)
    """Of a RUN instruction's output kept, to be shown when it fails."""
