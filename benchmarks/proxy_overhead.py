"""What the proxy adds to a call: a real server on loopback beside an engine that answers at once.

Each worker is one session that talks turn after turn, as an agent does, so later calls have longer prompts. Client and
server share one process and one core, so the figures are an upper bound. Prints one line of JSON:

    python benchmarks/proxy_overhead.py --tokenizer models/policy --turns 10 --concurrency 1 16 128
"""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from agentic.proxy import (
    CallSampling,
    ProxyServer,
    ProxySettings,
    Renderer,
    Sampling,
    ScriptedEngine,
    ScriptedReply,
    SessionHandle,
    SessionSpec,
    make_renderer,
)

OBSERVATION = "     1\tdef total(values):\n     2\t    return sum(values)\n" * 8
REPLY_TOKENS = 40


async def main(arguments: argparse.Namespace) -> dict[str, Any]:
    """One row for each concurrency."""
    renderer = make_renderer(arguments.tokenizer)
    rows = [await measure(renderer, sessions, arguments.turns) for sessions in arguments.concurrency]
    return {"turns": arguments.turns, "reply_tokens": REPLY_TOKENS, "rows": rows}


async def measure(renderer: Renderer, sessions: int, turns: int) -> dict[str, Any]:
    """Run `sessions` agents at once."""
    reply = ScriptedReply((*[65] * (REPLY_TOKENS - 1), renderer.stop_token_ids[0]))

    def script(_prompt_ids: Sequence[int], _sampling: CallSampling, _request_id: str) -> ScriptedReply:
        return reply

    server = ProxyServer(ProxySettings(), ScriptedEngine(script), renderer)
    await server.start()
    sampling = Sampling(temperature=1.0, max_tokens=REPLY_TOKENS)
    room = {"max_prompt_tokens": 10**6, "max_response_tokens": 10**7, "max_calls": turns}
    specs = [SessionSpec(session_id=f"s{n}", sampling=sampling, **room) for n in range(sessions)]
    handles = [await server.open(spec) for spec in specs]
    before, started = _cpu_seconds(), time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        lists = await asyncio.gather(*(talk(http, handle, turns) for handle in handles))
    spent, cpu = time.perf_counter() - started, _cpu_seconds() - before
    sealed = await server.seal("s0")
    await server.stop()
    milliseconds = sorted(1000 * value for values in lists for value in values)
    return {
        "sessions": sessions,
        "calls": len(milliseconds),
        "calls_per_second": round(len(milliseconds) / spent, 1),
        "p50_ms": round(statistics.median(milliseconds), 2),
        "p99_ms": round(milliseconds[int(len(milliseconds) * 0.99) - 1], 2),
        "cpu_ms_per_call": round(1000 * cpu / len(milliseconds), 2),
        "last_prompt_tokens": len(sealed.trajectories[-1].response_ids) + len(sealed.trajectories[-1].prompt_ids),
    }


async def talk(http: aiohttp.ClientSession, handle: SessionHandle, turns: int) -> list[float]:
    """Seconds of each call of one agent."""
    headers = {"Authorization": f"Bearer {handle.api_key}"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Repair the function.\n" + OBSERVATION}]
    spent = []
    for _ in range(turns):
        started = time.perf_counter()
        url, body = f"{handle.base_url}/chat/completions", {"messages": messages}
        async with http.post(url, json=body, headers=headers) as response:
            answer = await response.json()
        spent.append(time.perf_counter() - started)
        messages += [answer["choices"][0]["message"], {"role": "user", "content": OBSERVATION}]
    return spent


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokenizer", required=True, help="Hugging Face folder with tokenizer.json and a chat template"
    )
    parser.add_argument("--turns", type=int, default=10, help="calls of each session (default: 10)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 128], help="sessions at once")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(parse_arguments(sys.argv[1:])))) + "\n")
