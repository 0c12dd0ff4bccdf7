"""verl's platform plug-in for a machine without an accelerator.

Loaded in every process by name, in `VERL_USE_EXTERNAL_MODULES`, with `VERL_PLATFORM=cpu`, and
`VERL_ENGINE_DEVICE=cuda`, which makes verl hand out its ordinary FSDP engine: that engine is device agnostic.

What it must provide: the device calls that verl makes without asking whether the device has them; one *logical* Ray
GPU for a worker, so that verl's placement works unchanged; and an answer to `init_process_group("cpu:gloo,cpu:gloo")`,
the backend string that verl composes on a CPU and that torch refuses as a duplicate.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry

CPU = torch.device("cpu")


def _nothing(*_args: object, **_kwargs: object) -> None:
    """Stand in for device calls that have no meaning on a CPU."""


def _resident_bytes(*_args: object, **_kwargs: object) -> int:
    return int(psutil.Process().memory_info().rss)


def _free_and_total_bytes(*_args: object) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


class CpuDevice(types.ModuleType):
    """`torch.cpu`, plus the calls of `torch.cuda` that verl makes unguarded."""

    _IGNORED = frozenset(
        {"empty_cache", "ipc_collect", "set_device", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"}
        | {"set_per_process_memory_fraction", "synchronize"}
    )
    _MEMORY = frozenset({"memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"})

    def __init__(self) -> None:
        super().__init__("agentic_cpu_device")
        self.mem_get_info = _free_and_total_bytes
        self.is_available = lambda: True
        self.device_count = lambda: 1
        self.current_device = lambda: CPU
        self.get_device_name = lambda *_args: "cpu"
        self.get_rng_state = lambda *_args: torch.get_rng_state()
        self.set_rng_state = lambda state, *_args: torch.set_rng_state(state)

    def __getattr__(self, name: str) -> Any:
        if name in self._IGNORED:
            return _nothing
        if name in self._MEMORY:
            return _resident_bytes
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """One process is one device; collectives run on gloo."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CpuDevice()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return CPU

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Work on a CPU is finished when the call returns."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The C allocator has none."""

    def empty_cache(self) -> None:
        """The C allocator has no cache that could be given back."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """Without device IPC verl moves weights to the engine through POSIX shared memory."""
        return False

    def cudart(self) -> None:
        return None


def _accept_doubled_gloo(init_process_group: Callable[..., None]) -> Callable[..., None]:
    """torch's `init_process_group`, taking verl's "cpu:gloo,cpu:gloo" for what it means."""

    @functools.wraps(init_process_group)
    def init(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        init_process_group("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    return init


torch.distributed.init_process_group = _accept_doubled_gloo(torch.distributed.init_process_group)
