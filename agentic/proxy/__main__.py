"""`python -m agentic.proxy`: a proxy in front of a vLLM or SGLang server, until interrupted.

Arguments are read before anything else is imported from the package's heavier parts, so `--help` is quick.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from functools import partial

from . import ProxyError, ProxyFleet, ProxyServer, make_renderer
from .loop import run
from .options import LOG_LEVELS, add_settings, log_to_stderr, read_settings

CONTROL_KEY_VARIABLE = "AGENTIC_PROXY_CONTROL_KEY"
ENGINE_KEY_VARIABLE = "AGENTIC_PROXY_ENGINE_KEY"

EXAMPLES = f"""examples:
  vllm serve models/policy --logprobs-mode processed_logprobs --port 8000
  python -m agentic.proxy --engine http://127.0.0.1:8000 --tokenizer models/policy
  python -m agentic.proxy --engine http://127.0.0.1:8000 --tokenizer models/policy --port 8100 --control-port 8101 \\
      --journal journal --fsync --processes 4

prints one line of JSON with agent_url, control_url and, unless {CONTROL_KEY_VARIABLE} gives it, control_key; then
  curl -H "Authorization: Bearer $KEY" $CONTROL_URL/sessions -d '{{"session_id": "r1", "sampling": {{"temperature": 1,
      "max_tokens": 256}}, "max_prompt_tokens": 1024, "max_response_tokens": 4096, "max_calls": 30}}'
gives the base URL and key for an agent, and POST $CONTROL_URL/sessions/r1/seal what was captured.

environment:
  {CONTROL_KEY_VARIABLE}  key of the control plane, which is made up and printed if it is not given
  {ENGINE_KEY_VARIABLE}   key of the engine, where it was started with --api-key

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
    parser.add_argument(
        "--policy-version", type=policy_version, default=0, help="version recorded for each token (default: 0)"
    )
    parser.add_argument("--processes", type=int, default=1, help="processes that share the ports (default: 1)")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="from where on to log (default: info)")
    add_settings(parser)
    return parser.parse_args(arguments)


def policy_version(text: str) -> int:
    """A version that can be recorded."""
    version = int(text)
    if not 0 <= version < 2**32:
        raise argparse.ArgumentTypeError(f"{version} cannot be recorded: use 0 to {2**32 - 1}")
    return version


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

    settings = read_settings(options)
    make = partial(make_renderer, options.tokenizer)
    renderer = make()  # also where every process makes its own, so that a bad folder is told at once
    engine_key = os.environ.get(ENGINE_KEY_VARIABLE) or None
    kind = find_kind(options.engine, engine_key) if options.engine_kind == "auto" else options.engine_kind
    make_engine = partial(make_http_engine, options.engine, kind, options.model, options.policy_version, engine_key)
    if options.processes == 1:
        return ProxyServer(settings, make_engine(), renderer, control_key=control_key)
    return ProxyFleet(settings, make_engine, make, options.processes, control_key)


def main() -> int:
    """Run; 78 for bad input, as the project's steps do."""
    if sys.argv[1:2] == ["export"]:
        from .export import main as export

        return export(sys.argv[2:])
    options = parse_arguments(sys.argv[1:])
    log_to_stderr(logging.getLevelNamesMapping()[options.log_level.upper()])
    try:
        run(serve(options))
    except (ProxyError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
