"""How the images of a task set are found and built."""

from typing import Literal, Self

from pydantic import Field, model_validator

from agentic.settings import Settings


class RegistrySettings(Settings):
    """How registries are spoken to, by the step and by the Jobs that it starts."""

    secret: str | None = None
    """Name of a Secret of type `kubernetes.io/dockerconfigjson` with the right to pull and push; None is
    `cluster.image_pull_secret`. On one machine the configuration of `docker login` is read (`DOCKER_CONFIG`)."""
    plain_http: tuple[str, ...] = ()
    """Hosts, with their port, that speak no TLS, such as `127.0.0.1:5000`."""
    ca_file: str | None = None
    """PEM file with the authorities of registries that sign for themselves, beside the system's; a path in the
    workspace. The BuildKit that the step makes sure of trusts them as well."""
    requests_at_once: int = Field(8, ge=1)
    """Answers awaited at the same time."""
    timeout_seconds: float = Field(30.0, gt=0)
    """For one try of one request."""
    patience_seconds: float = Field(1800.0, ge=0)
    """How long one question is asked again after 429, 5xx, time-outs and broken connections. A registry that wants a
    longer pause ends the step, which is tried again later. One that does not answer at all, or says nothing but 5xx, is
    given two minutes of it."""


class ImageSettings(Settings):
    """Root folders are built on this machine, images for pods by BuildKit."""

    base_images: tuple[str, ...] = ("agentic/base:local",)
    """What FROM may name on this machine; each stands for its base folder, and for `sandbox.base_image` in images for
    pods."""
    shards: int = Field(8, ge=1, le=64)
    """Parts that a task set is split into, at most; each is one parallel step of the workflow."""
    parallelism: int = Field(4, ge=1)
    """Images built at once within a shard."""
    run_timeout_seconds: float = Field(600.0, gt=0)
    """For each RUN instruction on this machine."""
    run_memory_mb: int = Field(2048, ge=128)
    """For each RUN instruction on this machine, in MiB."""
    run_output_bytes: int = Field(64 * 1024, ge=1024)
    """Of a RUN instruction's output kept, to be shown when it fails."""
    builder: Literal["jobs", "direct", "none"] = "jobs"
    """What builds images for pods that no registry has: `jobs` starts a Job of the cluster for each, whose context is
    the claim of the data sets; `direct` calls `buildctl` where the step runs; `none` only names images, and lists those
    that somebody has to build. A step outside of the cluster does as with `none` unless this is `direct`."""
    buildkit_address: str | None = None
    """BuildKit that is there already, such as `tcp://buildkitd.tools:1234`; None is the Deployment and Service
    `buildkitd`, which the step makes sure of."""
    buildkit_tls_secret: str | None = None
    """Secret with `ca.pem`, `cert.pem` and `key.pem` for a BuildKit that asks for certificates."""
    buildkit_start_seconds: float = Field(300.0, gt=0)
    """How long BuildKit may take until it answers to where it is used from."""
    builder_image: str | None = None
    """Image with `buildctl` for the Jobs; None is `cluster.steps_image`, which is small."""
    build_timeout_seconds: int = Field(3600, gt=0)
    """For one attempt at one image, waiting for a node included."""
    attempts: int = Field(4, ge=1)
    """At one image, while its failures may pass. A registry's limit does not count: it is waited out as long as
    `images.registry.patience_seconds`."""
    retry_seconds: float = Field(30.0, gt=0)
    """Pause before an image is tried again; doubles with each, up to ten minutes."""
    keep_jobs_seconds: int = Field(86400, ge=60)
    """How long Jobs that have ended, and their logs, stay; they go with the run's Workflow at the latest."""
    cache: Literal["registry", "none"] = "registry"
    """`registry` keeps the layers of a build beside its image, under the tag `agentic-rl-cache`, so that a BuildKit
    that lost its disk builds again only what differs."""
    registry: RegistrySettings = RegistrySettings()
    """How registries are spoken to."""

    @model_validator(mode="after")
    def _direct_can_work(self) -> Self:
        if self.builder == "direct" and self.buildkit_address is None:
            raise ValueError(
                "images.builder is direct but images.buildkit_address is not set: name a BuildKit that can be reached "
                "from where the step runs, such as tcp://127.0.0.1:1234"
            )
        if self.builder == "direct" and self.buildkit_tls_secret is not None:
            raise ValueError(
                "images.buildkit_tls_secret is set but images.builder is direct, which shows no certificates: set "
                "images.builder=jobs, whose Jobs do"
            )
        return self
