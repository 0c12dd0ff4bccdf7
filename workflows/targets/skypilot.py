"""The task of SkyPilot, rendered from the settings. Pure.

Its run section is a head of assignments and a body that never differs (`skypilot_run.sh`), as with Slurm. Secrets are
written down by name; SkyPilot is told their values when it launches.
"""

import shlex
from pathlib import Path
from typing import Any

import yaml

from workflows.errors import CommandError
from workflows.settings import Settings
from workflows.targets.launch import Launch, check_sandboxes, payload

SETUP, RUN = (Path(__file__).with_name(f"skypilot_{name}.sh") for name in ("setup", "run"))

WORKDIR = "~/sky_workdir"
"""Where SkyPilot puts the project on each node, and where setup and run begin."""

WANDB_SECRET = "WANDB_API_KEY"

LOCAL_WORKSPACE = "$HOME/agentic-workspace"
"""The workspace of a single node without a volume."""


def render(settings: Settings, launch: Launch) -> dict[str, Any]:
    """The task, as SkyPilot's YAML has it.

    Raises:
        CommandError: settings that need Kubernetes, or several nodes without a volume.
    """
    check(settings)
    sky = settings.skypilot
    mounts = {"volumes": {str(launch.workspace): sky.volume}} if sky.volume else {}
    return {
        "name": sky.name,
        "resources": _resources(settings),
        "num_nodes": settings.train.nodes,
        "workdir": ".",
        **mounts,
        "secrets": dict.fromkeys(sky.secrets),
        "setup": _setup(settings),
        "run": _run(settings, launch),
    }


def check(settings: Settings) -> None:
    """Refuse what SkyPilot's nodes cannot run.

    Raises:
        CommandError: settings that need Kubernetes, several nodes without a volume, a tracker without its secret.
    """
    check_sandboxes(settings, "skypilot")
    nodes = settings.train.nodes
    if nodes > 1 and settings.skypilot.volume is None:
        raise CommandError(
            f"train.nodes is {nodes} but skypilot.volume is null: name a SkyPilot volume that all nodes share, which "
            "`sky volumes apply` makes, or set train.nodes=1"
        )
    if "wandb" in settings.train.trackers and WANDB_SECRET not in settings.skypilot.secrets:
        raise CommandError(
            f"train.trackers has wandb but skypilot.secrets does not name {WANDB_SECRET}: add it, or leave wandb out"
        )


def to_yaml(task: dict[str, Any]) -> str:
    """Text with scripts as they are read, line by line."""
    return yaml.dump(task, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes what has lines in lines."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _resources(settings: Settings) -> dict[str, Any]:
    sky, train = settings.skypilot, settings.train
    gpus = {"accelerators": f"{sky.accelerator}:{train.gpus_per_node}"} if train.device == "cuda" else {}
    return {
        "infra": sky.infra,
        **gpus,
        **({"cpus": sky.cpus} if sky.cpus else {}),
        "memory": sky.memory,
        **({"image_id": f"docker:{sky.image}"} if sky.image else {}),
        "ports": sky.dashboard_port,
    }


def _setup(settings: Settings) -> str:
    extra = "gpu" if settings.train.device == "cuda" else "cpu"
    return f"EXTRA={extra}\nPROGRAMS=({shlex.join(_programs(settings))})\n{SETUP.read_text()}"


def _programs(settings: Settings) -> list[str]:
    """Debian packages of what the nodes make sandboxes with."""
    has_sandboxes = settings.train.agent_loop != "single_turn_agent" and settings.rollout.use_local_trial
    return ["bubblewrap"] if has_sandboxes and settings.sandbox.provider == "bubblewrap" else []


def _run(settings: Settings, launch: Launch) -> str:
    sky = settings.skypilot
    workspace = shlex.quote(str(launch.workspace)) if sky.volume else LOCAL_WORKSPACE
    values: dict[str, str | int | float] = {
        "RUN_ID": launch.run_id,
        "RAY_PORT": sky.ray_port,
        "DASHBOARD_PORT": sky.dashboard_port,
        "RAY_CPUS": settings.ray.cpus,
        "RAY_GPUS": settings.train.gpus_per_node,
        "OBJECT_STORE_BYTES": settings.ray.object_store_bytes,
        "JOIN_POLLS": sky.join.polls,
        "JOIN_POLL_SECONDS": sky.join.poll_seconds,
    }
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in values.items()]
    lines += [f"WORKSPACE={workspace}", f"PAYLOAD=({shlex.join(payload(sky.command, 'python3', launch))})"]
    return "\n".join([*lines, RUN.read_text()])
