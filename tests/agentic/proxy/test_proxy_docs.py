"""The quick start of docs/proxy.md, run in its order and as it stands but for ports, with a double in vLLM's place.

With vLLM itself, and from its first line on, it is run in tests/clients/test_quick_start.py.
"""

import asyncio
import os
import re
import socket
import sys
from pathlib import Path

import pytest
from fake_vllm import FakeVllm
from proxy_rig import ids_of
from proxy_tokens import TINY_TEMPLATE, write_model_folder

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "proxy.md").read_text("utf-8")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [bound.getsockname()[1] for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


async def run(script: str, folder: Path, environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        "bash", "-ec", script, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out
    return out.decode()


@pytest.mark.timeout(180)  # three interpreters start, which takes its time on a busy machine
async def test_the_quick_start_does_what_it_says(tmp_path: Path) -> None:
    write_model_folder(tmp_path / "models" / "policy", TINY_TEMPLATE)
    _, serve, talk, seal = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    (python,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "AGENTIC_PROXY_CONTROL_KEY": "control"}
    async with FakeVllm(list(ids_of("Hi there<|im_end|>"))).serving() as vllm:
        agents, controls = map(str, free_ports(2))
        ports = {"8000": vllm.url.rpartition(":")[2], "8100": agents, "8101": controls}
        parts = (re.sub("8000|8100|8101", lambda m: ports[m[0]], part) for part in (serve, talk, python, seal))
        serve, talk, python, seal = parts
        (line,) = [line for line in serve.splitlines() if line.startswith("python -m agentic.proxy")]
        pipe, command = asyncio.subprocess.PIPE, line.rstrip("& ").split()
        proxy = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, stdout=pipe)
        assert proxy.stdout is not None
        assert controls in (await proxy.stdout.readline()).decode()
        (tmp_path / "agent.py").write_text(python)
        try:
            told = await run(f"{talk}\npython agent.py\n{seal}", tmp_path, environment)
        finally:
            proxy.terminate()
            await proxy.communicate()
    events = [line for line in told.splitlines() if line.startswith("data: ")]
    pieces = re.findall(r'"content": ?"([^"]*)"', "\n".join(events))
    assert "".join(pieces) == "Hi there", "streamed to curl, in as many pieces as the engine gave"
    assert "Hi there" in "".join(line for line in told.splitlines() if line not in events), "streamed to the SDK"
    assert '"calls":2' in told
    assert '"complete":true' in told
