"""Which sandbox runs untrusted code on this machine, and within which limits.

One model for each provider, chosen by `provider`. Limits are per sandbox; they are ceilings, not reservations, so that
far more sandboxes can run than memory divided by the limit, as long as few of them use theirs at once.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agentic.cluster.settings import KubeClientSettings, Label, Toleration
from agentic.settings import Settings

MIB = 1024 * 1024


class SandboxLimits(Settings):
    """What every provider bounds."""

    memory_mb: int = Field(768, ge=32)
    """Memory of all processes of a sandbox together, its scratch space in memory included, in MiB."""
    max_processes: int = Field(256, ge=8)
    """Processes and threads that exist at once in a sandbox of this machine. For pods it can only be left out: the
    kubelet's `podPidsLimit` bounds them."""
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


class SandboxOwner(Settings):
    """An object of the cluster that everything of a run ends with, such as its Workflow."""

    api_version: str
    """Such as `argoproj.io/v1alpha1`."""
    kind: str
    """Such as `Workflow`."""
    name: str
    """Name of the object, in the sandboxes' namespace."""
    uid: str
    """Its uid."""


class PrefetchSettings(Settings):
    """Images that every node pulls before the tasks that need them begin."""

    images: int = Field(64, ge=0)
    """So many are ahead of those that sandboxes have used, the held-out ones of the first validation before those of
    training, or after them in a run that goes on; when some are used, the next follow, and when one was not used while
    as many others were, as well. 0 pulls none ahead."""
    at_once: int = Field(4, ge=1, le=64)
    """Pulled at the same time; then the next."""
    seconds: float = Field(900.0, gt=0)
    """For so many; what is not there then is left to the sandboxes that need it."""


class KubeSandbox(SandboxLimits):
    """What every provider on Kubernetes has in common. Reached by KUBECONFIG, or from within by the pod's account."""

    namespace: str | None = None
    """Where sandboxes live; None is the namespace of the kubeconfig's context, or of the pod that we run in."""
    base_image: str = "agentic-rl/sandbox:0.1.0"
    """What warm sandboxes start from and the probe runs in; tasks that name `agentic/base:local` get it too."""
    registry: str | None = None
    """Host, with its port and perhaps a path, that images of tasks are looked for and pushed to, such as
    `registry.example/team`; stands in `image_pattern`. None takes only tasks that name an image themselves, unless the
    pattern names a host."""
    image_pattern: str | None = "{registry}/swe-bench/{instance_id}:latest"
    """Name of a task's image, with `{registry}`, `{instance_id}` (the task in lower case), `{task}` (that with single
    dashes) and `{environment}` (hash of its environment folder). What is found under this name is used, by digest;
    otherwise build-images builds it there. None takes only tasks that name an image themselves."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of the Secrets for private registries."""
    runtime_class: str | None = None
    """RuntimeClass such as `gvisor` or `kata`; None is the node's default."""
    read_only_root: bool = False
    """Refuse writes but below `writable_paths`, `/tests` and `/solution`, in sandboxes of tasks that do not say
    themselves: a `task.toml` may have `read_only_root` and `writable_paths` in its `[metadata.sandbox]`."""
    writable_paths: tuple[str, ...] = ("/tmp", "/logs")
    """Folders with space of their own, which start empty and count against `scratch_mb`."""
    capabilities: tuple[Literal["SETUID", "SETGID", "KILL", "CHOWN", "FOWNER", "DAC_OVERRIDE"], ...] = ()
    """Given back to a sandbox's root user: SETUID, SETGID and KILL for tasks that run commands as another user."""
    run_as_user: int | None = Field(None, ge=1)
    """User and group that everything in a sandbox runs as, for namespaces that enforce `restricted`; None is the
    image's own user, which for most tasks is root without capabilities."""
    scratch_mb: int = Field(2048, ge=16)
    """Disk that a sandbox may write, in MiB; one that writes more is evicted, and lost."""
    request_memory_mb: int = Field(128, ge=4)
    """Memory set aside on a node for each sandbox, in MiB; at most `memory_mb`. Only where it is all of that can a
    container that is killed for memory be told from a node that ran out: else such a loss is infra."""
    request_cpus: float = Field(0.05, gt=0)
    """CPUs set aside on a node for each sandbox; at most `cpus`."""
    node_selector: tuple[Label, ...] = ()
    """Labels of the nodes that sandboxes may run on, each as `key=value`."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes that sandboxes may run on."""
    priority_class: str | None = None
    """PriorityClass of sandboxes; below that of the trainer."""
    proxy_selector: tuple[Label, ...] = ("agentic-rl/role=trainer",)
    """Labels, each as `key=value`, of the pods that sandboxes may talk to: those that serve the proxy's agent plane.
    The default is the workflow's own pods that train and evaluate, of the same run. On a trial server the sandboxes'
    run is the server, so that there `agentic-rl/run=RUN` has to be added for trainers of the same cluster."""
    proxy_port: int | None = Field(None, ge=1, le=65535)
    """The only port there; None lets sandboxes reach nothing at all."""
    exec_server_image: str | None = None
    """Image with the exec server (`images/exec-server`), which each sandbox gets a copy of: commands and files then go
    straight to the pod's address and cost the API server nothing. None sends them through the API server."""
    exec_server_port: int = Field(7070, ge=1, le=65535)
    """Where the exec server listens; open to nobody unless `exec_server_image` is set."""
    exec_server_clients: tuple[Label, ...] = ("agentic-rl/role=trainer",)
    """Labels, each as `key=value`, of the pods that may reach it: those that trials run in, so on a trial server the
    server's own pod. The default is of the same run, which there is the server's name, unless `agentic-rl/run` is
    among them."""
    lease_seconds: int = Field(5400, ge=60)
    """A sandbox ends so long after it was taken or its lease was last renewed, whatever became of us. Longer than
    `rollout.deadline_seconds`; checked at load."""
    renew_seconds: float = Field(60.0, gt=0)
    """How often leases are renewed while in use; an owner that missed three is taken for dead."""
    start_timeout_seconds: float = Field(600.0, gt=0)
    """For a sandbox to run: waiting for a node, a quota, or an image."""
    unpullable_seconds: float = Field(120.0, gt=0)
    """How long an image may fail to be pulled before the sandbox is given up."""
    starts_per_node: int = Field(4, ge=1)
    """Sandboxes that may start at once for each node that ours land on, with `start_concurrency` as the upper bound; a
    node on which so many start gets the next pod only when no other has room."""
    prefetch: PrefetchSettings = PrefetchSettings()
    """Images that nodes pull before they are needed."""
    api: KubeClientSettings = KubeClientSettings()
    """How hard this process may press the API server, and how long it waits for it."""
    owner: SandboxOwner | None = None
    """What the run's objects end with besides their lease; None is nothing."""

    @model_validator(mode="after")
    def _pattern_has_known_parts(self) -> Self:
        known = ("registry", "instance_id", "task", "environment")
        try:
            (self.image_pattern or "").format(**dict.fromkeys(known, "x"))
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"sandbox.image_pattern is {self.image_pattern!r}, in which {error} stands for nothing: use "
                f"{', '.join(f'{{{name}}}' for name in known)}"
            ) from None
        return self

    @model_validator(mode="after")
    def _processes_are_the_kubelets(self) -> Self:
        if self.max_processes != SandboxLimits.model_fields["max_processes"].default:
            raise ValueError(
                f"sandbox.max_processes is {self.max_processes} but a pod cannot say how many processes it may have: "
                "leave it out and set podPidsLimit in the kubelets' configuration"
            )
        return self

    @model_validator(mode="after")
    def _requests_fit(self) -> Self:
        for name, request, limit in (
            ("memory_mb", self.request_memory_mb, self.memory_mb),
            ("cpus", self.request_cpus, self.cpus),
        ):
            if request > limit:
                raise ValueError(
                    f"sandbox.request_{name} is {request} but sandbox.{name} is {limit}: lower the first or raise the "
                    "second"
                )
        return self

    @model_validator(mode="after")
    def _selectors_pick_something(self) -> Self:
        if self.proxy_port is not None and not self.proxy_selector:
            raise ValueError(
                "sandbox.proxy_selector is empty but sandbox.proxy_port is set, which would open that port of every "
                "pod in the namespace: name the labels of the proxy's pods"
            )
        return self

    @model_validator(mode="after")
    def _lease_outlives_renewals(self) -> Self:
        if self.renew_seconds * 3 > self.lease_seconds:
            raise ValueError(
                f"sandbox.renew_seconds is {self.renew_seconds:g} but sandbox.lease_seconds is {self.lease_seconds}: "
                "a lease has to survive three missed renewals, raise it or renew more often"
            )
        return self


class PodSandbox(KubeSandbox):
    """One plain pod for each sandbox."""

    provider: Literal["pod"] = "pod"


class PoolSettings(Settings):
    """How many warm sandboxes wait."""

    by: Literal["class", "task"] = "class"
    """`class`: one pool for all tasks of the same resources, which take their image in place when they are claimed;
    `task`: one pool named after each task, such as `astropy-astropy-12907`, with `replicas` sandboxes."""
    replicas: int | None = Field(None, ge=0)
    """Of each task's pool while the task is worked on; None is as many as the task has samples: `rollout.n`, that is
    `train.rollouts_per_prompt`, in training, and 1 in evaluation."""
    minimum: int = Field(0, ge=0)
    """Of a class' pool, when nobody asks."""
    maximum: int = Field(64, ge=1)
    """Of a class' pool, or of all tasks' pools together, whatever is asked."""
    spare: float = Field(0.25, ge=0)
    """Part of the sandboxes in use that wait in addition, so that the next batch finds them warm."""
    idle_seconds: float = Field(120.0, gt=0)
    """A pool that was larger than needed for so long shrinks."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(
                f"sandbox.pool.minimum is {self.minimum} but sandbox.pool.maximum is {self.maximum}: lower the first"
            )
        return self


class KruiseSandbox(KubeSandbox):
    """OpenKruise Agents: SandboxSets as pools, one SandboxClaim for each sandbox."""

    provider: Literal["kruise"] = "kruise"
    api_group: str = "agents.kruise.io"
    """Group of SandboxSet, SandboxClaim and Sandbox; older guides name `apps.kruise.io`."""
    api_version: str = "v1alpha1"
    """Version of the group."""
    pool: PoolSettings = PoolSettings()
    """How many warm sandboxes wait."""


class AgentSandbox(KubeSandbox):
    """kubernetes-sigs/agent-sandbox: a SandboxTemplate and a SandboxWarmPool for each image, a SandboxClaim for each
    sandbox. It changes no image in place, so pools are by image."""

    provider: Literal["agent-sandbox"] = "agent-sandbox"
    api_version: str = "v1beta1"
    """Version of `agents.x-k8s.io` and `extensions.agents.x-k8s.io`."""
    pool: PoolSettings = PoolSettings(by="task")
    """How many warm sandboxes wait."""

    @model_validator(mode="after")
    def _pools_are_by_image(self) -> Self:
        if self.pool.by != "task":
            raise ValueError(
                "sandbox.pool.by is class but agent-sandbox changes no image in place: set sandbox.pool.by=task"
            )
        return self


def pooled_for(settings: "SandboxSettings", samples: int) -> "SandboxSettings":
    """The same, for tasks of so many samples each: that many wait in a task's pool unless settings say how many."""
    if not isinstance(settings, KruiseSandbox | AgentSandbox) or settings.pool.replicas is not None:
        return settings
    return settings.model_copy(update={"pool": settings.pool.model_copy(update={"replicas": samples})})


SandboxSettings = Annotated[
    BubblewrapSandbox
    | PodmanSandbox
    | DockerSandbox
    | UnsafeProcessSandbox
    | PodSandbox
    | KruiseSandbox
    | AgentSandbox,
    Field(discriminator="provider"),
]
