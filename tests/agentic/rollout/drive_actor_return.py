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

from agentic.proxy import Sampling, SessionHandle, SessionSpec
from agentic.rollout.actors import named_actor
from agentic.rollout.errors import ProxyUnavailableError
from agentic.rollout.proxy_actor import ActorProxy

SPEC = SessionSpec(
    session_id="s",
    sampling=Sampling(temperature=1.0, max_tokens=8),
    max_prompt_tokens=100,
    max_response_tokens=100,
    max_calls=4,
)


class SlowToReturn:
    """Dies at its first session; the next process takes long to be there."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._died = folder / "died"
        if self._died.exists():
            time.sleep(seconds)

    async def open(self, spec: SessionSpec) -> SessionHandle:
        """See ProxyServer.open."""
        if not self._died.exists():
            self._died.touch()
            os._exit(1)
        return SessionHandle(session_id=spec.session_id, base_url="http://127.0.0.1:1/v1", api_key="key")


async def attempts(folder: Path, seconds: float) -> list[str]:
    proxy, met = ActorProxy(named_actor("slow-to-return", SlowToReturn, folder, seconds)), []
    for _ in range(2):
        try:
            met.append((await proxy.open(SPEC)).session_id)
        except ProxyUnavailableError as error:
            met.append(type(error).__name__)
    return met


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    sys.stdout.write(json.dumps(asyncio.run(attempts(Path(sys.argv[1]), float(sys.argv[2])))) + "\n")
    ray.shutdown()
