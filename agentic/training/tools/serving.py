"""What a training job's tools need while it trains: their configuration file, and the code sandbox behind it."""

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agentic.training.jobs import TrainJob
from agentic.training.tools.tool_config import check_tools, write_sandbox_tool

CONFIG_FILE = "tool_config.json"
"""In the run's folder."""


@asynccontextmanager
async def tools_of(job: TrainJob) -> AsyncIterator[Path | None]:
    """The tool configuration file, its code sandbox running; None for loops without tools.

    Raises:
        PermanentError: the settings' own file is wrong; the message names the file and the place.
    """
    tools = job.train.tools
    if job.train.agent_loop != "tool_agent":
        yield None
    elif tools.config is not None:
        path = Path(tools.config).resolve()
        check_tools(path)
        yield path
    else:
        from agentic.training.tools.code_service import serve

        key, path = secrets.token_hex(16), job.run_dir / CONFIG_FILE
        host = "127.0.0.1" if job.train.nodes == 1 else _address()
        async with serve(tools.code, job.sandbox, job.store_dir, host=host, key=key, run_id=job.run_id) as url:
            write_sandbox_tool(
                path,
                sandbox_fusion_url=url,
                key=key,
                answer_seconds=tools.call_seconds * 0.9,
                success_reward=tools.success_reward,
            )
            yield path


def _address() -> str:
    """This machine's address, as other nodes of the job see it."""
    return socket.gethostbyname(socket.gethostname())
