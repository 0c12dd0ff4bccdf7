"""Plays OpenKruise's controller (the stand-in in tests/doubles) in a process of its own, until its input ends.

    python -m benchmarks.sandbox.controller NAMESPACE

Apart from the client that is measured, as the real one is.
"""

import asyncio
import sys
from pathlib import Path

DOUBLES = Path(__file__).parents[2] / "tests/doubles"


async def play(namespace: str) -> None:
    sys.path.insert(0, str(DOUBLES))
    from kruise_controller import KruiseController  # type: ignore[import-not-found]

    from agentic.cluster.client import KubeClient
    from agentic.cluster.credentials import LoadedCredentials
    from agentic.cluster.settings import KubeClientSettings

    unpaced = KubeClientSettings(requests_per_second=5000, request_burst=5000)
    async with (
        KubeClient(LoadedCredentials(), unpaced, namespace=namespace) as api,
        KruiseController(api, kubelet=False),
    ):
        sys.stdout.write("plays\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1]))
