"""What is measured, each started fresh: our proxy, the peer from PyPI in its own environment, and nothing at all."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from agentic.proxy import ControlClient, Sampling, SessionSpec

PEER = "rllm-model-gateway"
PEER_VERSION = "0.1.0"
ROOM_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Opened:
    """One session as its client reaches it."""

    base_url: str
    headers: dict[str, str]


class Target(Protocol):
    """Something that answers chat requests."""

    @property
    def pid(self) -> int | None:
        """Of the process tree whose cost is measured."""
        ...

    async def open(self, name: str) -> Opened:
        """A session."""
        ...

    async def end(self, name: str) -> dict[str, Any]:
        """The session is over; what is known of it."""
        ...


class Direct:
    """No proxy: sessions are names only."""

    pid: int | None = None

    def __init__(self, engine_url: str) -> None:
        self._url = engine_url

    async def open(self, name: str) -> Opened:
        return Opened(self._url, {})

    async def end(self, name: str) -> dict[str, Any]:
        return {}


class Peer:
    """rllm-model-gateway, as it comes: one process, traces in SQLite."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid = pid
        self._url = url

    async def open(self, name: str) -> Opened:
        return Opened(f"{self._url}/sessions/{name}", {})

    async def end(self, name: str) -> dict[str, Any]:
        async with aiohttp.ClientSession() as http, http.delete(f"{self._url}/sessions/{name}") as response:
            return dict(await response.json())


class Ours:
    """`python -m agentic.proxy`."""

    def __init__(self, pid: int, control: ControlClient, sealing: aiohttp.ClientSession, reply_tokens: int) -> None:
        self.pid = pid
        self._control = control
        self._sealing = sealing
        self._reply_tokens = reply_tokens

    async def open(self, name: str) -> Opened:
        spec = SessionSpec(
            session_id=name,
            sampling=Sampling(temperature=1.0, max_tokens=self._reply_tokens + 1),
            max_prompt_tokens=ROOM_TOKENS,
            max_response_tokens=ROOM_TOKENS,
            max_calls=ROOM_TOKENS,
        )
        handle = await self._control.open(spec)
        return Opened(handle.base_url.removesuffix("/v1"), {"Authorization": f"Bearer {handle.api_key}"})

    async def end(self, name: str) -> dict[str, Any]:
        async with self._sealing.post(f"/sessions/{name}/seal") as response:
            sealed = await response.read()
        await self._control.drop(name)
        return outline(sealed)


def outline(sealed: bytes) -> dict[str, Any]:
    """What of a sealed session is checked, found by its bytes: reading it whole takes the load generator too long."""
    masks = sealed.split(b'"response_mask":[')[1:]
    return {
        "complete": b'"complete":true' in sealed,
        "calls": int(sealed.partition(b'"calls":')[2].split(b",", 1)[0]),
        "trajectories": len(masks),
        "trained_tokens": sum(mask.partition(b"]")[0].count(b"1") for mask in masks),
    }


@asynccontextmanager
async def ours(
    engine_url: str,
    model: Path,
    reply_tokens: int,
    processes: int,
    journal: Path | None,
    fsync: bool = False,
    own_port: bool = True,
) -> AsyncIterator[Ours]:
    """Started by the command that people use; several processes with or without a port of their own for each."""
    command = [sys.executable, "-m", "agentic.proxy", "--engine", engine_url, "--tokenizer", str(model)]
    command += ["--processes", str(processes), *(["--journal", str(journal)] if journal else [])]
    command += [*(["--fsync"] if fsync else []), *(["--own-port", "0"] if own_port else [])]
    async with _process(command, {"AGENTIC_PROXY_CONTROL_KEY": ""}) as (process, line):
        where = json.loads(line)
        headers = {"Authorization": f"Bearer {where['control_key']}"}
        async with (
            ControlClient(where["control_url"], where["control_key"]) as control,
            aiohttp.ClientSession(where["control_url"], headers=headers) as sealing,
        ):
            yield Ours(process.pid, control, sealing, reply_tokens)
    if journal is not None:
        shutil.rmtree(journal, ignore_errors=True)


@asynccontextmanager
async def peer(engine_url: str, folder: Path, work: Path) -> AsyncIterator[Peer]:
    """Started by its own command, from its own environment."""
    port = _free_port()
    command = [str(folder / "bin" / PEER), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker", f"{engine_url}/v1", "--db-path", str(work / "traces.db"), "--log-level", "warning"]
    async with _process(command, {}, wait_for_line=False) as (process, _):
        url = f"http://127.0.0.1:{port}"
        await _until_healthy(url)
        yield Peer(process.pid, url)
    for path in work.glob("traces.db*"):
        path.unlink()


@asynccontextmanager
async def engine(
    sleep: float, reply_ids: list[int], characters_per_token: float, events: int = 1
) -> AsyncIterator[str]:
    """The engine of all of them; gives its URL."""
    command = [sys.executable, "-m", "benchmarks.proxy.engine", "--sleep", str(sleep), "--events", str(events)]
    command += ["--reply-ids", ",".join(map(str, reply_ids)), "--characters-per-token", str(characters_per_token)]
    async with _process(command, {}) as (_, line):
        yield f"http://127.0.0.1:{int(line)}"


def ensure_peer(cache: Path) -> Path:
    """The peer's environment, made once, outside the tree: its dependencies are not ours."""
    folder = cache / f"{PEER}-{PEER_VERSION}"
    if not (folder / "bin" / PEER).is_file():
        uv = shutil.which("uv") or str(next(Path(".bootstrap").rglob("bin/uv"), "uv"))
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
        python = str(folder / "bin" / "python")
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, f"{PEER}=={PEER_VERSION}"], check=True)
    return folder


@asynccontextmanager
async def _process(
    command: list[str], environment: dict[str, str], wait_for_line: bool = True
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, **environment}
    )
    try:
        line = await process.stdout.readline() if process.stdout is not None and wait_for_line else b""
        if wait_for_line and not line:
            raise RuntimeError(f"{command} ended at its start")
        yield process, line.decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _until_healthy(url: str) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(30):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])
