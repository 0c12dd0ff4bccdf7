"""A vLLM server of our own for one policy: started, waited for, ended.

Used where a policy is measured without verl. The server's logprobs are those of the distribution that it samples from
(`processed_logprobs`), as in training.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiohttp

from agentic import processes
from agentic.training import children
from agentic.training.environment import base_environment, cpu_environment
from agentic.training.errors import EngineStartError
from agentic.training.overrides import IN_PROCESS_EXECUTOR
from agentic.training.settings import TrainSettings

START_TIMEOUT_SECONDS = 600.0
"""A CPU start takes about a minute, a large model on a GPU several."""
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 10.0


@contextlib.asynccontextmanager
async def serve(
    model_dir: Path, train: TrainSettings, *, run_id: str, workspace: Path, threads: int, log: Path
) -> AsyncIterator[str]:
    """The base URL of a running server for `model_dir`, ended on exit.

    Raises:
        EngineStartError: it exited or did not answer in time.
    """
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | base_environment(run_id, workspace)
    if train.device == "cpu":
        environment |= cpu_environment(threads)
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *processes.bound(server_command(model_dir, train, port)),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        await _wait_until_ready(url, process, log)
        yield url
    finally:
        await children.end(process, _GRACE_SECONDS)


def server_command(model_dir: Path, train: TrainSettings, port: int) -> list[str]:
    """vLLM's command line for a policy of this training run."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "policy", "--dtype", train.dtype]
    command += ["--max-model-len", str(train.max_prompt_tokens + train.max_response_tokens)]
    command += ["--logprobs-mode", "processed_logprobs"]
    if train.tensor_parallel is not None:
        command += ["--tensor-parallel-size", str(train.tensor_parallel)]
    if train.device == "cpu":
        command += ["--distributed-executor-backend", IN_PROCESS_EXECUTOR]
        command += ["--enforce-eager", "--max-num-seqs", "128", "--max-num-batched-tokens", "4096"]
    return command


async def _wait_until_ready(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_TIMEOUT_SECONDS
    async with aiohttp.ClientSession() as client:
        while loop.time() < deadline:
            if process.returncode is not None:
                raise EngineStartError(f"vLLM ended with exit code {process.returncode} before it was ready: see {log}")
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(_POLL_SECONDS)
    raise EngineStartError(f"vLLM was not ready within {START_TIMEOUT_SECONDS:g} s: see {log}")
