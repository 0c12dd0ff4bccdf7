"""Rollouts whose proxy is killed and takes its time to come back, on a real Ray; run by test_rollout_actors.py.

Prints what each of two attempts met, one after the other, as JSON.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import ray

from agentic.rollout.actors import named_actor
from agentic.rollout.errors import ProxyUnavailableError
from agentic.rollout.proxy_actor import ActorProxy


class SlowToReturn:
    """Stands for the run's proxy. Dies at its first call; the next process takes long to be there."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._died = folder / "died"
        if self._died.exists():
            time.sleep(seconds)

    async def seal(self, session_id: str) -> str:
        """See ProxyServer.seal."""
        if not self._died.exists():
            self._died.touch()
            os._exit(1)
        return session_id


async def attempts(folder: Path, seconds: float) -> list[object]:
    proxy = ActorProxy(named_actor("slow-to-return", SlowToReturn, folder, seconds))
    met: list[object] = []
    for _ in range(2):
        try:
            met.append(await proxy.seal("s"))
        except ProxyUnavailableError as error:
            met.append(type(error).__name__)
    return met


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    sys.stdout.write(json.dumps(asyncio.run(attempts(Path(sys.argv[1]), float(sys.argv[2])))) + "\n")
    ray.shutdown()
