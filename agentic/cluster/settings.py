"""Where the workflow runs: the cluster's names and shares, and what one machine must offer. Light: pydantic only.

The names are those of the guide for managed Kubernetes, so that its commands (`kubectl get pvc verl-models
verl-dataset`, `kubectl get rayclusters`) show what they show there.
"""

from typing import Self

from pydantic import Field, model_validator

from agentic.settings import Settings


class ClaimSettings(Settings):
    """A PersistentVolumeClaim."""

    claim: str
    """Name of the claim."""

    size: str
    """Capacity that is asked for when the claim has to be made, such as `50Gi`."""


class StepResources(Settings):
    """What a container of the workflow asks for; requests equal limits."""

    cpu: str = "1"
    """CPUs, such as `2` or `500m`."""

    memory: str = "2Gi"
    """Memory; a container that uses more is killed and the step tried again."""


class HeadSettings(Settings):
    """The head of the RayCluster, which trains."""

    name: str = "raycluster-verl"
    """Name of the RayCluster."""

    gpus: int = Field(8, ge=0)
    """GPUs of the head; equals `train.gpus_per_node` unless training runs on the CPU."""

    cpus: int = Field(50, gt=0)
    """CPUs of the head."""

    memory: str = "200Gi"
    """Memory of the head: the model, the optimiser when it is offloaded, and Ray's object store."""


class HostMount(Settings):
    """A folder of the nodes that pods see read-only."""

    host_path: str = Field(pattern=r"^/[^:]*$")
    """The folder, on every node that pods of the run may land on."""

    mount_path: str = Field(pattern=r"^/[^:]+$")
    """Where containers see it."""


class ClusterSettings(Settings):
    """The namespace, the claims, the images and the limits of the workflow's pods."""

    namespace: str = "default"
    """Namespace of everything that a run makes."""

    service_account: str = "rayclustertest"
    """Account of the workflow's pods; its Role allows pods, jobs, sandboxes and task results."""

    image_pull_secret: str | None = None
    """Name of the Secret for private registries (the guide calls it `acr-registry`); `None` = none."""

    steps_image: str = "agentic-rl/steps:0.1.0"
    """Image of the light steps, without machine learning."""

    trainer_image: str = "agentic-rl/trainer:0.1.0"
    """Image of the steps that need the training stack."""

    workspace_path: str = Field("/workspace", pattern=r"^/[a-z0-9/_-]*[a-z0-9]$")
    """Where containers see the workspace: `models` below it is one claim, `datasets` another, the rest a third."""

    mounts: tuple[HostMount, ...] = ()
    """Folders of the nodes that the pods of steps and of Ray see read-only, for environments that lie on the nodes
    instead of in an image. Each as `{"host_path": "/opt/env", "mount_path": "/opt/env"}`; sandboxes never get them."""

    models: ClaimSettings = ClaimSettings(claim="verl-models", size="50Gi")
    """Models, one folder each."""

    datasets: ClaimSettings = ClaimSettings(claim="verl-dataset", size="100Gi")
    """Data sets, one folder each."""

    runs: ClaimSettings = ClaimSettings(claim="verl-runs", size="200Gi")
    """Runs (settings, logs, checkpoints, reports) and the store of root folders for local sandboxes."""

    light: StepResources = StepResources()
    """Resources of a light step."""

    heavy: StepResources = StepResources(cpu="8", memory="32Gi")
    """Resources of download-model and of build-images."""

    head: HeadSettings = HeadSettings()
    """The RayCluster's head; `train` and `evaluate` get the same share."""

    retries: int = Field(3, ge=0)
    """How often a step is tried again after a failure that may pass."""

    retry_seconds: int = Field(30, ge=0)
    """Pause before the first such retry; doubles with each, up to ten minutes."""

    step_deadline_seconds: int = Field(4 * 3600, gt=0)
    """Longest time of an attempt at any step but training and evaluation."""

    train_deadline_seconds: int = Field(6 * 86400, gt=0)
    """Longest time of an attempt at training, and at evaluation."""

    deadline_seconds: int = Field(7 * 86400, gt=0)
    """Longest time of the whole workflow; longer than `train_deadline_seconds`."""

    parallelism: int = Field(20, gt=0)
    """Containers of one workflow that run at once."""

    keep_succeeded_seconds: int = Field(7 * 86400, gt=0)
    """How long a succeeded Workflow object stays."""

    keep_failed_seconds: int = Field(30 * 86400, gt=0)
    """How long a failed Workflow object stays."""

    @model_validator(mode="after")
    def _deadlines_nest(self) -> Self:
        longest = max(self.step_deadline_seconds, self.train_deadline_seconds)
        if self.deadline_seconds < longest:
            raise ValueError(
                f"cluster.deadline_seconds is {self.deadline_seconds} but one step may take {longest}: raise the first "
                "or lower cluster.step_deadline_seconds and cluster.train_deadline_seconds"
            )
        return self


class MachineSettings(Settings):
    """What must be there before anything is downloaded."""

    memory_gib: float = Field(2.0, ge=0)
    """Memory that a local run needs to find available, GiB."""

    disk_gib: float = Field(1.0, ge=0)
    """Space that has to be free in the workspace, GiB."""


class KubeClientSettings(Settings):
    """How hard the API server may be pressed, and how long it is waited for."""

    requests_per_second: float = Field(100.0, gt=0)
    """Of one process, on average; the server's own fairness comes on top."""

    request_burst: int = Field(200, ge=1)
    """Requests that may go out at once after a pause."""

    max_concurrent_requests: int = Field(64, ge=1)
    """Answers awaited at the same time; commands count only while they are being started, watches not at all."""

    request_timeout_seconds: float = Field(30.0, gt=0)
    """For one try of one request."""

    retry_seconds: float = Field(60.0, ge=0)
    """How long a request is tried again after 429, 5xx, time-outs and broken connections. Longer than a restart of the
    API server."""

    watch_idle_seconds: float = Field(90.0, gt=0)
    """A watch that brings nothing for so long, not even the bookmark of every minute, is made anew."""

    ping_seconds: float = Field(20.0, gt=0)
    """Between two signs of life on the stream of a silent command. Below every idle time-out on the way."""

    page_size: int = Field(500, ge=1)
    """Objects in one answer of a list."""
