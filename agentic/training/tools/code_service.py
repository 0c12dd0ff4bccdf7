"""The code sandbox as a service: `POST /run_code {"code": "print(1)"}`.

    python -m agentic.training.tools.code_service --port 8660

The answer has `status` ("Success" or "Failed") and `run_result` with `status`, `stdout`, `stderr`, `return_code`.
429 means that too many runs wait, 503 that the sandbox failed, which says nothing about the code. With a key, requests
need `Authorization: Bearer KEY`; without one it listens on this machine only. `GET /health` answers 200.
"""

import argparse
import asyncio
import contextlib
import hmac
import ipaddress
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import override

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from agentic.errors import AgenticError, PermanentError, TransientError
from agentic.sandbox.settings import BubblewrapSandbox, SandboxSettings
from agentic.training.tools.code_runner import CodeRunner, RunAnswer, ServiceBusyError, open_runner
from agentic.training.tools.settings import CodeSandboxSettings

KEY_VARIABLE = "AGENTIC_CODE_SANDBOX_KEY"
"""The environment variable that holds the service's key, for the command line."""
ENVELOPE_BYTES = 4096
"""What a request may hold beside its code."""
JSON_GROWTH = 6
"""How many bytes one byte of code can become in JSON."""


class RunCodeRequest(BaseModel):
    """The body of `/run_code`; what else clients of other sandboxes send is left alone."""

    code: str
    run_timeout: float | None = Field(None, gt=0)
    """Seconds; may only lower the service's own limit."""


def make_app(runner: CodeRunner, key: str | None = None) -> FastAPI:
    """The application over a runner."""
    app = FastAPI(title="code sandbox", docs_url=None, redoc_url=None, openapi_url=None)
    limit = runner.settings.code_limit_bytes

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/run_code")
    async def run_code(request: Request) -> RunAnswer:
        _check_key(request, key)
        body = RunCodeRequest.model_validate_json(await _bounded_body(request, limit * JSON_GROWTH + ENVELOPE_BYTES))
        if len(body.code.encode(errors="replace")) > limit:
            raise HTTPException(413, f"the code has more than {limit} bytes")
        try:
            return await runner.run(body.code.encode(errors="replace").decode(), body.run_timeout)
        except ServiceBusyError as error:
            raise HTTPException(429, str(error)) from error
        except TransientError as error:
            raise HTTPException(503, str(error)) from error

    @app.exception_handler(ValueError)
    async def refuse(_: Request, error: ValueError) -> JSONResponse:
        return JSONResponse({"detail": f"no valid request: {str(error).splitlines()[0]}"}, 422)

    return app


def _check_key(request: Request, key: str | None) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if key is not None and not hmac.compare_digest(given.encode(), key.encode()):
        raise HTTPException(401, "the key is missing or wrong")


async def _bounded_body(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise HTTPException(413, f"the request has more than {limit} bytes")
    return bytes(body)


class _Server(uvicorn.Server):
    """uvicorn within an event loop that has other duties, and signals of its own."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve(
    settings: CodeSandboxSettings,
    sandbox: SandboxSettings,
    store_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    key: str | None = None,
    run_id: str = "code",
) -> AsyncIterator[str]:
    """The URL of a running service, ended on exit with all that it runs. `run_id`: whose sweep finds what a service
    that was killed has left.

    Raises:
        PermanentError: it would be open to other machines without a key.
        TransientError: the port is taken.
    """
    if key is None and not ipaddress.ip_address(host).is_loopback:
        raise PermanentError(f"the code sandbox would run anybody's code at {host}: set {KEY_VARIABLE}")
    with closing(_listen(host, port)) as listening:
        runner = open_runner(settings, sandbox, store_dir, run_id)
        config = uvicorn.Config(make_app(runner, key), log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(0.01)
            place = f"[{host}]" if ":" in host else host
            yield f"http://{place}:{listening.getsockname()[1]}/run_code"
        finally:
            server.should_exit = True
            await serving
            await runner.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise TransientError(f"the code sandbox cannot listen at {host}:{port}: {error.strerror}") from error


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m agentic.training.tools.code_service", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8660, help="0 takes a free one (%(default)s)")
    parser.add_argument("--store", type=Path, help="folder for root folders; a temporary one when not given")
    parser.add_argument("--limits", default="{}", help='JSON, such as \'{"run_seconds": 5, "memory_mb": 128}\'')
    return parser.parse_args()


async def listen(arguments: argparse.Namespace) -> None:
    """Serve until cancelled, or told to end."""
    settings = CodeSandboxSettings.model_validate_json(arguments.limits)
    key = os.environ.get(KEY_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="agentic-code-", ignore_cleanup_errors=True) as folder:
        store = arguments.store or Path(folder)
        async with serve(
            settings, BubblewrapSandbox(), store, host=arguments.host, port=arguments.port, key=key
        ) as url:
            sys.stdout.write(f"{url}\n")
            sys.stdout.flush()
            ended = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
            await ended.wait()


def main() -> int:
    """0 after Ctrl-C, else an error's line and exit code."""
    try:
        asyncio.run(listen(parse()))
    except KeyboardInterrupt:
        return 0
    except (AgenticError, ValueError) as error:
        sys.stderr.write(f"{str(error).splitlines()[0]}\n")
        return 75 if isinstance(error, TransientError) else 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
