"""`python -m agentic.proxy`: a proxy in front of a vLLM or SGLang server, until interrupted.

Arguments are read before anything else is imported from the package's heavier parts, so `--help` is quick.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

from . import ProxyError, ProxyFleet, ProxyServer, ProxySettings, make_renderer
from .loop import run

CONTROL_KEY_VARIABLE = "AGENTIC_PROXY_CONTROL_KEY"

EXAMPLES = f"""examples:
  vllm serve models/policy --logprobs-mode processed_logprobs --port 8000
  python -m agentic.proxy --engine http://127.0.0.1:8000 --tokenizer models/policy
  python -m agentic.proxy --engine http://127.0.0.1:8000 --tokenizer models/policy --port 8100 --control-port 8101 \\
      --journal journal --fsync --processes 4

prints one line of JSON with agent_url, control_url and, unless {CONTROL_KEY_VARIABLE} gives it, control_key; then
  curl -H "Authorization: Bearer $KEY" $CONTROL_URL/sessions -d '{{"session_id": "r1", "sampling": {{"temperature": 1,
      "max_tokens": 256}}, "max_prompt_tokens": 1024, "max_response_tokens": 4096, "max_calls": 30}}'
gives the base URL and key for an agent, and POST $CONTROL_URL/sessions/r1/seal what was captured.

  python -m agentic.proxy export --help
says how to get sealed sessions out of a journal, as arrays, parquet or text.
"""


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m agentic.proxy",
        description="Record agents' LLM calls token-exactly, in front of a vLLM or SGLang server.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", required=True, help="base URL of a vLLM or SGLang server")
    parser.add_argument(
        "--engine-kind", choices=("auto", "vllm", "sglang"), default="auto", help="what it is (default: ask it)"
    )
    parser.add_argument("--tokenizer", required=True, help="Hugging Face folder of the served model")
    parser.add_argument("--model", help="model name that the engine expects (default: its only one)")
    parser.add_argument("--policy-version", type=int, default=0, help="version recorded for each token (default: 0)")
    parser.add_argument("--host", default="127.0.0.1", help="address for agents (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port for agents (default: a free one)")
    parser.add_argument("--advertised-host", help="host name that agents are told (default: --host)")
    parser.add_argument("--control-host", default="127.0.0.1", help="address for the control side (default: 127.0.0.1)")
    parser.add_argument("--control-port", type=int, default=0, help="port for the control side (default: a free one)")
    parser.add_argument("--unix-socket", type=Path, help="socket file for agents in sandboxes")
    parser.add_argument("--journal", type=Path, help="folder for the journal (default: memory only)")
    parser.add_argument("--processes", type=int, default=1, help="processes that share the ports (default: 1)")
    parser.add_argument("--fsync", action="store_true", help="answer only after the journal is on disk")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    given_key = os.environ.get(CONTROL_KEY_VARIABLE) or None
    server = make_server(options, given_key)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await server.start()
    try:
        where = {"agent_url": server.agent_url, "control_url": server.control_url}
        shown = where if given_key else where | {"control_key": server.control_key}
        sys.stdout.write(json.dumps(shown) + "\n")
        sys.stdout.flush()
        await stopping.wait()
    finally:
        await server.stop()


def make_server(options: argparse.Namespace, control_key: str | None) -> ProxyServer | ProxyFleet:
    """One process that does everything, or the supervisor of several."""
    from .engines.kinds import find_kind, make_http_engine

    settings = ProxySettings(
        host=options.host,
        port=options.port,
        advertised_host=options.advertised_host,
        control_host=options.control_host,
        control_port=options.control_port,
        unix_socket=options.unix_socket,
        journal_directory=options.journal,
        journal_fsync=options.fsync,
    )
    make = partial(make_renderer, options.tokenizer)
    renderer = make()  # also where every process makes its own, so that a bad folder is told at once
    kind = find_kind(options.engine) if options.engine_kind == "auto" else options.engine_kind
    make_engine = partial(make_http_engine, options.engine, kind, options.model, options.policy_version)
    if options.processes == 1:
        return ProxyServer(settings, make_engine(), renderer, control_key=control_key)
    return ProxyFleet(settings, make_engine, make, options.processes, control_key)


def main() -> int:
    """Run; 78 for bad input, as the project's steps do."""
    if sys.argv[1:2] == ["export"]:
        from .export import main as export

        return export(sys.argv[2:])
    options = parse_arguments(sys.argv[1:])
    try:
        run(serve(options))
    except (ProxyError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
