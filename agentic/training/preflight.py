"""What training needs of the machine that it runs on, checked before anything is downloaded."""

import contextlib
import importlib.util
import io
import re
import shutil
from pathlib import Path

from agentic.errors import PermanentError, Problem
from agentic.training.settings import RaySettings, TrainSettings

_SHARED_MEMORY = Path("/dev/shm")
_STACK = ("verl", "vllm", "ray", "torch", "harbor")


def preflight(train: TrainSettings, ray: RaySettings) -> list[Problem]:
    """Everything that is in the way of training here; memory is the caller's to check, since its need is a setting."""
    found = [*_missing_packages(), *_too_little_shared_memory(ray), *_too_few_gpus(train, _count_gpus())]
    return [*found, *_wrong_tools(train)]


def _missing_packages() -> list[Problem]:
    missing = [name for name in _STACK if importlib.util.find_spec(name) is None]
    if not missing:
        return []
    return [Problem(f"the training stack is not installed ({', '.join(missing)} missing): run `make setup`")]


def _too_little_shared_memory(ray: RaySettings) -> list[Problem]:
    free = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.exists() else 0
    if free >= ray.object_store_bytes:
        return []
    return [
        Problem(
            f"{_SHARED_MEMORY} has {free / 1e6:.0f} MB free but ray.object_store_bytes asks for "
            f"{ray.object_store_bytes / 1e6:.0f} MB: lower the setting, or enlarge {_SHARED_MEMORY}"
        )
    ]


def _count_gpus() -> int:
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in Path("/dev").iterdir())


def _too_few_gpus(train: TrainSettings, gpus: int) -> list[Problem]:
    if train.device == "cpu" or gpus >= train.gpus_per_node:
        return []
    return [
        Problem(
            f"train.gpus_per_node is {train.gpus_per_node} but this machine shows {gpus} GPUs: lower the setting, "
            "submit to a cluster, or take a CPU profile (--profile demo)"
        )
    ]


def _wrong_tools(train: TrainSettings) -> list[Problem]:
    """The user's own file of tools would else be read when the model has been fetched. Takes seconds: imports verl."""
    path = train.tools.config
    if train.agent_loop != "tool_agent" or path is None or importlib.util.find_spec("verl") is None:
        return []
    from agentic.training.tools.tool_config import check_tools

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # verl prints each tool's schema
            check_tools(Path(path).resolve())
    except PermanentError as error:
        return [Problem(str(error))]
    return []
