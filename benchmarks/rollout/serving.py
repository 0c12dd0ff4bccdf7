"""The proxy of the benchmark, in a process of its own as in training: prints where it is, and ends with its input."""

import asyncio
import json
import sys
from pathlib import Path

from agentic.proxy import ProxyServer, ProxySettings, ScriptedEngine
from agentic.proxy.loop import run
from agentic.rollout.scripted_model import byte_renderer

from .world import make_script


async def serve(folder: Path, delay: float, faulty: bool) -> None:
    """Until standard input is closed."""
    renderer = byte_renderer(folder / "model")
    engine = ScriptedEngine(make_script(renderer, delay, faulty))
    server = ProxyServer(ProxySettings(), engine, renderer)
    await server.start()
    try:
        sys.stdout.write(json.dumps({"url": server.control_url, "key": server.control_key}) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await server.stop()


if __name__ == "__main__":
    run(serve(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "faulty"))
