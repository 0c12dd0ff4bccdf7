"""The sandbox of agents that leave no logs in it, as ours: what Harbor would fetch of them is not fetched.

Harbor moves the folders `/logs/agent` and `/logs/artifacts` out of the sandbox, and the first one back in, four
commands a trial, unless they are mounted from the host. None of our agents writes anything there; saying that they are
mounted saves those commands, about 20 of a trial's 100 ms of CPU.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, override

from harbor.environments.base import ExecResult

from agentic.sandbox.harbor_environment import SandboxEnvironment

_UNUSED_FOLDERS = frozenset({PurePosixPath("/logs/agent"), PurePosixPath("/logs/artifacts")})


class LoglessEnvironment(SandboxEnvironment):
    """A sandbox whose log folders only the verifier uses, which makes them itself (see `verifier.py`)."""

    @override
    def is_path_mounted(self, environment_path: Any, host_path: Path) -> bool:
        if PurePosixPath(environment_path) in _UNUSED_FOLDERS:
            return True
        return bool(super().is_path_mounted(environment_path, host_path))

    @override
    async def ensure_dirs(self, dirs: Sequence[Any], *, chmod: bool = True) -> ExecResult | None:
        return None
