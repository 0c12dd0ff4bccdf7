"""Where the workflow runs: the cluster's names and shares, and what one machine must offer. Light: pydantic only.

The names are those of the guide for managed Kubernetes, so that its commands (`kubectl get pvc verl-models
verl-dataset`, `kubectl get rayclusters`) show what they show there.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agentic.settings import Settings

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*=[A-Za-z0-9._-]*$")]
"""`key=value`: a run's settings are keys of caches, so that they hold no dictionaries."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
"""Of an object: one that the API server would refuse is refused before anything is made."""

Image = Annotated[str, Field(pattern=r"^[^\s]+$")]
"""Of a container."""

Bytes = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?[KMGTPE]i$")]
"""An amount of memory or disk, such as `200Gi`."""

Cpus = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?m?$")]
"""A number of CPUs, such as `2` or `500m`."""


class Toleration(Settings):
    """A taint that does not matter, as in a pod's spec."""

    key: str
    """Key of the taint."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Whether its value counts."""
    value: str = ""
    """Value of the taint; empty with `Exists`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty is every one."""


def label_map(labels: tuple[Label, ...]) -> dict[str, str]:
    """As the API server wants them."""
    return {key: value for key, _, value in (label.partition("=") for label in labels)}


def toleration_list(tolerations: tuple[Toleration, ...]) -> list[dict[str, str]]:
    """As a pod's spec has them."""
    return [{key: value for key, value in one.model_dump().items() if value} for one in tolerations]


class ClaimSettings(Settings):
    """A PersistentVolumeClaim."""

    claim: Name
    """Name of the claim."""

    size: Bytes
    """Capacity that is asked for when the claim has to be made, such as `50Gi`."""

    storage: Literal["shared", "block"] = "shared"
    """`shared`: object or file storage that any number of nodes mount at once (ReadWriteMany), in any zone; `block`: a
    disk of one node at a time (ReadWriteOnce), in that node's zone."""

    storage_class: str | None = Field(None, pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")
    """StorageClass of a claim that has to be made; `None` is the cluster's default."""

    mount_path: str | None = Field(None, pattern=r"^/[^:]+$")
    """Where Ray's pods see the same volume besides, as the guide has it; `None` is only in the workspace."""

    @property
    def access_mode(self) -> str:
        return "ReadWriteMany" if self.storage == "shared" else "ReadWriteOnce"


class StepResources(Settings):
    """What a container of the workflow asks for; requests equal limits."""

    cpu: Cpus = "1"
    """CPUs, such as `2` or `500m`."""

    memory: Bytes = "2Gi"
    """Memory; a container that uses more is killed, and the step tried again once."""


class HeadSettings(Settings):
    """The head of the RayCluster, which trains."""

    name: Name = "raycluster-verl"
    """Name of the RayCluster."""

    gpus: int = Field(8, ge=0)
    """GPUs of the head; equals `train.gpus_per_node` unless training runs on the CPU."""

    cpus: int | float = Field(50, gt=0)
    """CPUs of the head."""

    memory: Bytes = "200Gi"
    """Memory of the head: the model, the optimiser when it is offloaded, and Ray's object store."""


class WorkerSettings(Settings):
    """Further nodes of the RayCluster, one pod each."""

    replicas: int = Field(0, ge=0)
    """Pods besides the head: `train.nodes` less one."""

    gpus: int = Field(8, ge=0)
    """GPUs of each; equals `train.gpus_per_node`."""

    cpus: int | float = Field(50, gt=0)
    """CPUs of each."""

    memory: Bytes = "200Gi"
    """Memory of each."""


class DiskFamily(Settings):
    """Which disks the machines of a family take."""

    instance_type: str
    """Beginning of the instance types, such as `ecs.gn5-`."""

    categories: tuple[str, ...]
    """Disk categories that they attach, as the StorageClass' parameter `type` names them."""


class BuildKitSettings(Settings):
    """The builder of images that the namespace's runs share; `images.buildkit_address` names another one instead."""

    name: Name = "buildkitd"
    """Of its Deployment and Service."""

    image: Image = "moby/buildkit:v0.32.2"
    """Its image. The guide takes `latest`, which changes under a run."""

    port: int = Field(1234, ge=1, le=65535)
    """Where it listens."""

    rootless: bool = False
    """Run as an ordinary user, with an image whose tag ends in `-rootless`; no privileged container then, but nodes
    have to allow user namespaces."""

    server_secret: Name | None = None
    """Secret with `ca.pem`, `cert.pem` and `key.pem` of the builder, for mutual TLS; then `images.buildkit_tls_secret`
    has those of who builds. `None` leaves it to a NetworkPolicy who reaches the builder."""

    mirrors: tuple[str, ...] = ()
    """Hosts that are asked for Docker Hub's images first."""

    cache_gib: int = Field(50, ge=5)
    """Disk of its node that it may take, GiB: four fifths are its cache, which is lost with its pod."""

    cpu: Cpus = "4"
    """CPUs of the builder."""

    memory: Bytes = "8Gi"
    """Memory of the builder."""

    node_selector: tuple[Label, ...] = ()
    """Labels of the nodes that it may run on, each as `key=value`."""

    tolerations: tuple[Toleration, ...] = ()
    """Taints of these nodes."""

    @model_validator(mode="after")
    def _image_is_rootless(self) -> Self:
        if self.rootless and not self.image.endswith("-rootless"):
            raise ValueError(
                f"cluster.buildkit.rootless is true but cluster.buildkit.image is {self.image}: take one whose tag "
                "ends in -rootless"
            )
        return self


class HostMount(Settings):
    """A folder of the nodes that pods see read-only."""

    host_path: str = Field(pattern=r"^/[^:]*$")
    """The folder, on every node that pods of the run may land on."""

    mount_path: str = Field(pattern=r"^/[^:]+$")
    """Where containers see it."""


class SecretKeySettings(Settings):
    """One entry of a Secret; its value never enters settings, parameters or logs."""

    name: Name
    """Name of the Secret, in the namespace of the run."""

    key: str = "key"
    """The entry that holds the value."""


class ClusterSettings(Settings):
    """The namespace, the claims, the images and the limits of the workflow's pods."""

    namespace: str = Field("default", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    """Namespace of everything that a run makes."""

    service_account: Name = "rayclustertest"
    """Account of the workflow's pods; its Role allows pods, jobs, sandboxes and task results."""

    image_pull_secret: Name | None = None
    """Name of the Secret for private registries (the guide calls it `acr-registry`); `None` = none."""

    steps_image: Image = "agentic-rl/steps:0.1.0"
    """Image of the light steps, without machine learning."""

    trainer_image: Image = "agentic-rl/trainer:0.1.0"
    """Image of the steps that need the training stack."""

    workspace_path: str = Field("/workspace", pattern=r"^/[a-z0-9/_-]*[a-z0-9]$")
    """Where containers see the workspace: `models` below it is one claim, `datasets` another, the rest a third."""

    mounts: tuple[HostMount, ...] = ()
    """Folders of the nodes that the pods of steps and of Ray see read-only, for environments that lie on the nodes
    instead of in an image. Each as `{"host_path": "/opt/env", "mount_path": "/opt/env"}`; sandboxes never get them."""

    models: ClaimSettings = ClaimSettings(claim="verl-models", size="50Gi", mount_path="/var/model")
    """Models, one folder each."""

    datasets: ClaimSettings = ClaimSettings(claim="verl-dataset", size="100Gi", mount_path="/var/model-dataset")
    """Data sets, one folder each."""

    runs: ClaimSettings = ClaimSettings(claim="verl-runs", size="200Gi")
    """Runs (settings, logs, checkpoints, reports) and the store of root folders for local sandboxes."""

    bound_timeout_seconds: float = Field(300.0, gt=0)
    """How long a new claim may take until it has its volume."""

    disk_families: tuple[DiskFamily, ...] = (
        DiskFamily(instance_type="ecs.gn5-", categories=("cloud_ssd", "cloud_efficiency")),
    )
    """Machines that do not attach every category of disk; all others are taken to."""

    light: StepResources = StepResources()
    """Resources of a light step."""

    heavy: StepResources = StepResources(cpu="8", memory="32Gi")
    """Resources of download-model and of build-images."""

    head: HeadSettings = HeadSettings()
    """The RayCluster's head, in which training and evaluation run."""

    workers: WorkerSettings = WorkerSettings()
    """The RayCluster's further nodes."""

    ray_patience_seconds: float = Field(900.0, ge=0)
    """How long what may pass by itself, such as room that other pods hold, may keep the RayCluster from starting before
    the step ends and names it. Time in a queue does not count."""

    ray_start_seconds: float = Field(3600.0, gt=0)
    """How long the RayCluster may take to start in all, pulls of large images included."""

    ray_version: str = "2.60.0"
    """Of Ray in `trainer_image`, for the operator."""

    gpu_resource: str = "nvidia.com/gpu"
    """What the device plug-in calls a GPU."""

    run_as_user: int | None = Field(0, ge=0)
    """User of Ray's pods, as which storage is written; `None` is the image's own."""

    node_selector: tuple[Label, ...] = ()
    """Labels, each as `key=value`, of the nodes for all pods of a run but its sandboxes. With block disks it has to
    name one node, `kubernetes.io/hostname=NODE`."""

    tolerations: tuple[Toleration, ...] = ()
    """Taints of the nodes for all pods of a run but its sandboxes. With block disks that is the one node with the GPUs,
    which often has one."""

    ray_node_selector: tuple[Label, ...] = ()
    """Labels of the nodes for Ray's pods, in addition."""

    ray_tolerations: tuple[Toleration, ...] = ()
    """Taints of the nodes with GPUs, for Ray's pods, in addition."""

    queue: Name | None = None
    """Kueue's LocalQueue that the run waits in until its shares are free, `step_deadline_seconds` at most; `None`
    starts at once. Light steps and the cleanup never wait in it, since they watch over, and end, what holds its
    quota."""

    priority_class: Name | None = None
    """PriorityClass of Ray's pods, of the steps and of the Jobs that build images."""

    network_policies: bool = True
    """Close Ray's pods to all but the run's own steps, and its sandboxes to all of them but the proxy's port."""

    ray_clients: tuple[Label, ...] = ()
    """Labels of further pods that may reach Ray and the proxy, such as a trial server's."""

    buildkit: BuildKitSettings = BuildKitSettings()
    """The builder of images."""

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

    trial_server_key: SecretKeySettings | None = None
    """Where the pods that run rollouts find the trial server's key: it becomes the environment variable that
    `rollout.trial_server.key_variable` names. `None` = the trial server asks for none."""

    priority: int | None = None
    """Among Workflows that wait for Argo's own limit of concurrent ones, larger goes first; `None` counts as 0."""

    argo_server: str | None = Field(None, pattern=r"^(https?://)?[^/\s]+(/[^\s]*)?$")
    """An Argo server to submit, watch and retry through, as `host:port` (then HTTPS) or as an address; `None` = the
    environment variable ARGO_SERVER, and without it the Workflow objects themselves. ARGO_TOKEN, ARGO_SECURE,
    ARGO_INSECURE_SKIP_VERIFY and ARGO_BASE_HREF count as for the argo command."""

    argo_server_ca: str | None = None
    """File with the authority of the Argo server's certificate; `None` = the system's authorities."""

    argo_ui: str | None = Field(None, pattern=r"^https?://[^/\s]+(/[^\s]*)?$")
    """Where browsers find Argo's UI, for links; `None` = the Argo server's address."""

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
