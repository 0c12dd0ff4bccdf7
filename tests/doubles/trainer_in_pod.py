"""A trainer's pod for tests: the proxy and one whole rollout in it, whose sandbox is another pod of the same cluster.

python trainer_in_pod.py '{"port": 8400, "forbidden": ["10.0.0.1:6443"], ...}' prints how the rollout went as its last
line. The policy is scripted: it tries every forbidden address from inside the sandbox, solves the task and submits. The
pod's own account is used, as in a workflow.
"""

import asyncio
import json
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import proxy_tokens

from agentic.proxy import ProxyServer, Sampling, ScriptedEngine, ScriptedReply, make_renderer
from agentic.rollout.export import training_rows
from agentic.rollout.proxy_socket import advertised, proxy_settings, sandbox_environment
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest, run_rollout
from agentic.rollout.settings import InsideShellAgentSettings, RolloutSettings
from agentic.rollout.trial import sandboxed_runner
from agentic.sandbox.settings import PodSandbox

TASK_TOML = """\
version = "1.0"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
docker_image = "agentic/base:local"
workdir = "/app"
"""
TEST_SH = "#!/bin/sh\nif grep -q 42 /app/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"

TRY = """\
import socket
for address in {addresses!r}:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
        print("OPEN", address)
    except OSError:
        print("closed", address)
"""


def write_task(folder: Path) -> Path:
    for name in ("environment", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(TASK_TOML)
    (folder / "instruction.md").write_text("Write 42 into answer.\n")
    (folder / "tests" / "test.sh").write_text(TEST_SH)
    (folder / "tests" / "test.sh").chmod(0o755)
    return folder


class Answering(BaseHTTPRequestHandler):
    """Another port of the trainer's pod."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def listen(port: int) -> None:
    server = ThreadingHTTPServer(("0.0.0.0", port), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def scripted(replies: list[str]) -> ScriptedEngine:
    tokenizer = proxy_tokens.make_tokenizer()

    def reply(prompt_ids: Any, sampling: Any, request_id: Any) -> ScriptedReply:
        turn = tokenizer.decode(list(prompt_ids), skip_special_tokens=False).count("<|im_start|>assistant")
        return ScriptedReply((*tokenizer.encode(replies[turn - 1]).ids, proxy_tokens.END))

    return ScriptedEngine(reply)


async def roll_out(port: int, forbidden: list[str], **changes: Any) -> dict[str, Any]:
    bounds: dict[str, Any] = {"max_turns": 4, "max_tokens": 2000, "command_timeout_seconds": 30.0}
    agent = InsideShellAgentSettings(output_characters=8000, **bounds)
    rollout = RolloutSettings(agent=agent, infra_retries=0, deadline_seconds=120, start_seconds=30)
    sandbox = PodSandbox(proxy_port=port, base_image="agentic/base:local", **changes)
    folder = Path(tempfile.mkdtemp())
    model_dir = proxy_tokens.write_model_folder(folder / "model", proxy_tokens.TINY_TEMPLATE)
    serving = advertised(proxy_settings(rollout, sandbox, str(folder)))
    listen(port + 1)
    addresses = [*forbidden, f"{serving.advertised_host}:{port + 1}"]
    code = TRY.format(addresses=addresses)
    replies = [f"cat > /tmp/try.py <<'END'\n{code}END\npython3 /tmp/try.py", "echo 42 > answer", "submit"]
    proxy = ProxyServer(serving, scripted([f"```bash\n{reply}\n```" for reply in replies]), make_renderer(model_dir))
    await proxy.start()
    base_url = proxy.agent_url
    trials = sandboxed_runner("in-pod", folder / "images", sandbox, 1)
    request = RolloutRequest(
        rollout_id="uid_0",
        phase=Phase.TRAIN,
        step=1,
        task="answer",
        split="train",
        task_dir=str(write_task(folder / "tasks" / "answer")),
        trials_dir=str(folder / "trials"),
        environment=sandbox_environment(agent, serving),
        sampling=Sampling(temperature=1.0, max_tokens=2000),
        prompt_tokens=1000,
        response_tokens=30_000,
    )
    try:
        result = await run_rollout(request, rollout, proxy, trials)
    finally:
        await trials.close()
        await proxy.stop()
    seen = "".join(
        proxy_tokens.make_tokenizer().decode(list(row.response_ids), skip_special_tokens=False)
        for row in training_rows(result)
    )
    return {
        "outcome": str(result.verdict.outcome),
        "reason": result.verdict.infra_reason,
        "base_url": base_url,
        "closed": [address for address in addresses if f"closed {address}" in seen],
        "open": [address for address in addresses if f"OPEN {address}" in seen],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(roll_out(**json.loads(sys.argv[1])))))  # noqa: T201 - the test reads it from the log
