"""A proxy server on a thread of its own, for tests that are not asynchronous themselves, such as hypothesis'."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxy_rig import a_spec

from agentic.proxy import ProxyServer, ProxySettings, ScriptedEngine, SessionHandle, make_renderer


@contextmanager
def proxy_on_a_thread(model: Path, script: Any) -> Iterator[SessionHandle]:
    """One open session with room for everything, on a server that is stopped at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = ProxyServer(ProxySettings(), ScriptedEngine(script), make_renderer(model))
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        rooms = {"max_prompt_tokens": 10**6, "max_response_tokens": 10**6, "max_calls": 10**6}
        yield asyncio.run_coroutine_threadsafe(server.open(a_spec(**rooms)), loop).result()
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
