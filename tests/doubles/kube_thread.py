"""The API server in memory on a thread of its own, for commands that run an event loop themselves."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from kube_api import KubeApiServer


@contextmanager
def kube_on_a_thread() -> Iterator[KubeApiServer]:
    """A server that answers; its store may be read at any time, and changed before it is asked."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = KubeApiServer()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        yield server
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def write_kubeconfig(folder: Path, address: str) -> Path:
    """One context that leads to the address."""
    path = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": address}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    path.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"})
    )
    return path
