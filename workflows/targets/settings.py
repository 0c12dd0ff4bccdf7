"""Settings of the launchers that start a Ray cluster by themselves: Slurm and SkyPilot. Light: pydantic only.

How many machines and GPUs there are is said once, in `train.nodes` and `train.gpus_per_node`; here stands what only the
launcher wants to know. What a run computes depends on nothing here.
"""

from typing import Annotated, Literal

from pydantic import Field

from agentic.settings import Settings

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+:/-]*$")]
"""What becomes a word of a directive: no blanks, no quotes."""

Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$")]
"""A network interface, such as `ib0`."""

Line = Annotated[str, Field(pattern=r"^[^\n\r]*$")]
"""One line of a script."""

EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class JoinSettings(Settings):
    """How long nodes are waited for."""

    polls: int = Field(30, gt=0)
    """How often Ray is asked how many nodes it has before the run gives up."""

    poll_seconds: float = Field(10.0, gt=0)
    """Between two of these."""


class SlurmSettings(Settings):
    """The batch job of `--target slurm`."""

    partition: Name | None = None
    """`None` = the cluster's default."""

    account: Name | None = None
    """Who is charged; `None` = the user's default."""

    time_limit: str = Field("01:00:00", pattern=r"^(\d+-)?\d+(:\d+){0,2}$")
    """Of one start of the job. A longer training goes on in the next one: see `requeue`."""

    cpus_per_node: int = Field(64, gt=0)
    """CPUs of each node (`--cpus-per-task`, with one task a node)."""

    memory: str = Field("200G", pattern=r"^\d+[KMGT]?$")
    """Memory of each node."""

    options: tuple[Annotated[str, Field(pattern=r"^--?[A-Za-z][^\n\r]*$")], ...] = ()
    """Further `#SBATCH` options, each a whole one such as `--qos=high` or `--constraint=h100`."""

    image: str | None = None
    """Apptainer image, a path or an address such as `docker://registry.example/agentic-rl/trainer:1`: that of
    `make images`, or another with the training stack; `None` = none."""

    binds: tuple[str, ...] = ()
    """More folders that the image is shown (`--bind`), beside the project and the workspace."""

    python: str | None = None
    """Python with the training stack on the nodes; `None` = `python3` in an image, else the project's `.venv`, which is
    for nodes without GPUs."""

    setup: tuple[Line, ...] = ()
    """Shell lines that every node runs first, such as `module load apptainer`."""

    interface: Interface | None = None
    """Network interface of Ray, gloo and NCCL's rendezvous; RAY_NETWORK_INTERFACE overrides it. `None` = the address
    that the head's name stands for, and on the other nodes the interface that leads to it."""

    data_interfaces: tuple[Interface, ...] = ()
    """Interfaces that NCCL and gloo move tensors over, where there are several; empty = the one of Ray's address."""

    ray_port: int = Field(6379, gt=1023, lt=65536)
    """Of Ray's head."""

    dashboard_port: int | None = Field(8265, gt=1023, lt=65536)
    """Of Ray's dashboard, on the head's loopback (reach it by `ssh -L`); `None` = no dashboard."""

    worker_pause_seconds: int = Field(5, ge=0)
    """Between the starts of two workers, so that many do not fall upon the head at once."""

    join: JoinSettings = JoinSettings()
    """Waiting for the nodes."""

    log: str = Field("verl_demo_slurm.log", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """File in `runs/<run-id>/logs/` that gets all output as well as Slurm's own `slurm-%j.out`."""

    requeue: bool = True
    """Let a job that was preempted, ran out of time, or failed for a passing reason come back and go on."""

    restarts: int = Field(20, ge=0)
    """How often the job puts itself back at most."""

    warning_seconds: int = Field(120, ge=30)
    """Before the time limit, and where Slurm has `preempt_send_user_signal` before preemption, the job is
    told so; it then ends training in good order and puts itself back."""

    command: tuple[str, ...] = ()
    """What runs on the head once all nodes have joined; empty = the workflow."""


class SkyPilotSettings(Settings):
    """The task of `--target skypilot`."""

    name: str = Field("agentic-grpo", pattern=r"^[a-z]([a-z0-9-]{0,50}[a-z0-9])?$")
    """Of the task, and of the SkyPilot cluster that `submit` launches it on."""

    infra: str = Field("k8s", pattern=r"^[a-z0-9*][A-Za-z0-9/*_.-]*$")
    """Where: `k8s`, `aws`, `gcp`, `azure`, or one of their regions such as `aws/us-east-1`."""

    accelerator: str = Field("H100", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Kind of GPU; `train.gpus_per_node` says how many a node has."""

    cpus: str | None = Field(None, pattern=r"^\d+\+?$")
    """CPUs of a node; `8+` = at least 8, `None` = as SkyPilot chooses."""

    memory: str = Field("128+", pattern=r"^\d+\+?$")
    """Memory of a node, GiB; `128+` = at least 128."""

    image: str | None = "verlai/verl:vllm017.latest"
    """Container image; `None` = SkyPilot's own. Setup brings what is missing to the pinned versions."""

    volume: Name | None = None
    """SkyPilot volume that is the workspace. More than one node needs it: all read the model and write checkpoints."""

    secrets: tuple[EnvironmentName, ...] = ("RAY_AUTH_TOKEN",)
    """Environment variables that `sky launch --secret NAME` brings; only their names are written down. Ray wants
    RAY_AUTH_TOKEN, since its dashboard is exposed; others are WANDB_API_KEY, and HF_TOKEN for gated models."""

    ray_port: int = Field(6379, gt=1023, lt=65536)
    """Of the run's Ray head; SkyPilot's own Ray uses others."""

    dashboard_port: int = Field(8265, gt=1023, lt=65536)
    """Of Ray's dashboard, exposed (`sky status --endpoint 8265 CLUSTER`)."""

    join: JoinSettings = JoinSettings()
    """Waiting for the nodes."""

    command: tuple[str, ...] = ()
    """What runs on the head once all nodes have joined; empty = the workflow."""


LauncherName = Literal["slurm", "skypilot"]
"""Targets that are rendered here."""
