"""The quick start of docs/proxy.md as it is typed, with vLLM and SmolLM2 on this machine; only ports differ."""

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "proxy.md").read_text("utf-8")
QUICK_START = TEXT[TEXT.index("## Quick start") : TEXT.index("## What happens to a call")]


def free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(bound.getsockname()[1]) for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


def typed(folder: Path) -> str:
    """All blocks in their order, in a folder of their own instead of the repository's, which has its environment."""
    ports = dict(zip(("8000", "8100", "8101"), free_ports(3), strict=True))
    blocks = re.findall(r"```(sh|python)\n(.*?)```", QUICK_START, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", "python", "sh"]
    parts = []
    for kind, text in blocks:
        shown = re.sub("8000|8100|8101", lambda found: ports[found[0]], text)
        parts.append(shown if kind == "sh" else f"python - <<'END'\n{shown}\nEND")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "Makefile").write_text("setup:\n")
    return "\n".join(parts)


async def test_the_quick_start_works_as_it_is_typed(tmp_path: Path) -> None:
    script = typed(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (tmp_path / "said").open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            "bash", "-ec", script, cwd=tmp_path, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            async with asyncio.timeout(800):
                code = await process.wait()
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # what was left in the background
    told = (tmp_path / "said").read_text("utf-8", "replace")
    assert code == 0, told[-3000:]
    assert '"calls":2' in told
    assert '"complete":true' in told
    assert re.search(r'"response_logprobs":\[-?[0-9.]+', told)
    shutil.rmtree(tmp_path / "models")
