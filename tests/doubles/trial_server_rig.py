"""A trial server for tests: in this process and loop, over real HTTP, or as a process of its own that can be killed."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from agentic.rollout.server.journal import Journal
from agentic.rollout.server.keys import Keys
from agentic.rollout.server.serving import Place, listen, make_server
from agentic.rollout.server.settings import ServerSettings
from agentic.rollout.trial import TrialRunner

PROCESS_ENVIRONMENT = "process_environment:ProcessEnvironment"
FAULTS = ("lose_at_command", "lose_times_file", "start_seconds", "stop_seconds")
"""Arguments of the double by which it fails or is slow."""
REPOSITORY = Path(__file__).parents[2]
KEY = "a-key-of-the-tests-0123456789"


@asynccontextmanager
async def serving(folder, *, runner=None, keys=(KEY,), port=0, **changes):
    """The URL of a server with its state in `folder`, that runs trials in the double of a sandbox."""
    values = {"environments": (PROCESS_ENVIRONMENT,), "environment_arguments": FAULTS, "concurrency": 4} | changes
    settings = ServerSettings(state_dir=folder, store_dir=folder / "images", **values)
    place = Place("127.0.0.1", port)
    listener = listen(place)
    runner = runner or TrialRunner(settings.concurrency)
    server = make_server(settings, Keys(keys), place, runner, Journal(folder / "journal.jsonl"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


async def filled(url, running=1, queued=1):
    """Waits until so many trials run on a server, and so many wait there."""
    async with asyncio.timeout(30), aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http:
        while True:
            capacity = await (await http.get(f"{url}/v1/capacity")).json()
            if (capacity["running"], capacity["queued"]) == (running, queued):
                return
            await asyncio.sleep(0.05)


async def start_process(folder, *settings, port=0, arguments=()):
    """A server as a process, and its URL."""
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'doubles'}"}
    environment["AGENTIC_TRIAL_SERVER_KEY"] = KEY
    words = ["--state", str(folder), "--port", str(port), "--set", f"environments=[{PROCESS_ENVIRONMENT}]"]
    words += ["--set", f"environment_arguments=[{', '.join(FAULTS)}]"]
    for setting in settings:
        words += ["--set", setting]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentic.rollout.server", *words, *arguments),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    line = (await process.stdout.readline()).decode()
    return process, line.strip().rpartition(" ")[2]
