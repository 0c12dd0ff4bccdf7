"""Measure all targets under the same loads and write the table.

    python -m benchmarks.proxy [--quick] [--output docs/results/proxy.json]
    python -m benchmarks.proxy --only phases --output docs/results/proxy.json

`--quick` takes about a minute and shows where time goes; figures for the table come from the full form on a quiet
machine. Parts that are compared with no other (phases, kept, flat) may be measured again alone: the output keeps the
others, and says so. Everything runs on this machine: the load generator, the engine that sleeps, and the target.
"""

import argparse
import datetime
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from . import machine, memory, targets
from .load import Load, Measured, Shape, drive
from .model import Text, write_model_folder
from .phases import measure_phases
from .picture import draw
from .summary import APART, added, goals, measured_again, saturation
from .table import page

REPLY_TOKENS = 100
SHORT_TOKENS, LONG_TOKENS = 16_000, 64_000
"""Prompts at turn 20."""
FULL_LOAD = Load(1000, 4, 12, 100)
PEER_SESSIONS = (100, 200, 300, 500, 1000)
CACHE = Path.home() / ".cache" / "agentic-benchmarks"


class Benchmark:
    """The parts of a run; each starts its targets anew."""

    def __init__(self, work: Path, quick: bool, peer: Path | None) -> None:
        self._work = work
        self._quick = quick
        self._peer = peer
        self._model = write_model_folder(CACHE / "model")
        self._text = Text(self._model)
        self._reply = [*self._text.reply_ids[: REPLY_TOKENS - 1], self._text.end_id]
        self.rows: list[dict[str, Any]] = []

    async def latency(self, prompt_tokens: int) -> None:
        """All targets on the same timetable."""
        load = Load(300, 3, 6, 50) if self._quick else FULL_LOAD
        slow = Load(load.sessions // 5, load.warm_seconds, load.window_seconds, load.sessions / 50)
        shape = Shape(prompt_tokens, REPLY_TOKENS)
        async with self._engine(2.0) as url:
            await self._measure("direct", targets.Direct(url), shape, load)
            await self._ours(url, shape, load, processes=1)
            # The whole load is more than the peer can answer at either length, so it is shown once.
            for peers in (load, slow) if prompt_tokens == SHORT_TOKENS else (slow,):
                await self._measure_peer(url, shape, peers)

    async def durability(self) -> None:
        """Ours with every call on disk before it is answered; the other rows have it handed to the kernel."""
        async with self._engine(2.0) as url:
            for prompt_tokens in (SHORT_TOKENS, LONG_TOKENS):
                await self._ours(url, Shape(prompt_tokens, REPLY_TOKENS), FULL_LOAD, processes=1, fsync=True)

    async def saturation(self) -> None:
        """As many calls as each can answer."""
        shape = Shape(SHORT_TOKENS, REPLY_TOKENS)
        load = Load(400, 3, 4, None) if self._quick else Load(2000, 4, 8, None)
        async with self._engine(2.0) as url:
            for processes in (2,) if self._quick else (1, 2, 4):
                await self._ours(url, shape, load, processes)
            if not self._quick:
                # A thousand that wait 2 s each ask 500 times a second at most.
                await self._ours(url, shape, replace(load, sessions=1000), processes=1)
                await self._ours(url, shape, load, processes=2, own_port=False)
            # How many calls at a time it answers fastest is the peer's to show: the best rate counts.
            for sessions in (200,) if self._quick else PEER_SESSIONS:
                await self._measure_peer(url, shape, Load(sessions, 5 + sessions / 100, load.window_seconds, None))

    async def kept(self) -> dict[str, Any]:
        """Memory of open sessions by the turn."""
        found = {}
        async with self._engine(0.0) as url:
            for tokens, sessions in (
                ((SHORT_TOKENS, 40), (LONG_TOKENS, 10)) if self._quick else ((SHORT_TOKENS, 100), (LONG_TOKENS, 30))
            ):
                shape = Shape(tokens, REPLY_TOKENS)
                async with targets.ours(url, self._model, REPLY_TOKENS, 1, self._work / "journal") as ours:
                    found[f"ours, {tokens}"] = await memory.per_turn(ours, self._text, shape, sessions, 8)
                if self._peer is not None:
                    async with targets.peer(url, self._peer, self._work) as peer:
                        found[f"peer, {tokens}"] = await memory.per_turn(peer, self._text, shape, sessions // 10, 4)
        return found

    async def flat(self) -> list[dict[str, float]]:
        """Memory along sessions that end; the engine does not sleep here, or it would take hours. Two processes, since
        one would take twice the time for the same calls."""
        calls = 2_000 if self._quick else 100_000
        async with (
            self._engine(0.0) as url,
            targets.ours(url, self._model, REPLY_TOKENS, 2, self._work / "journal") as ours,
        ):
            return await memory.over_calls(ours, self._text, Shape(3_000, REPLY_TOKENS), calls, 16)

    def phases(self) -> list[dict[str, float]]:
        """Where the time of a call goes, by the length of what came before."""
        return measure_phases(self._model, self._text, repeats=5 if self._quick else 20)

    def _engine(self, sleep: float) -> Any:
        return targets.engine(sleep, self._reply, self._text.characters_per_token)

    async def _ours(
        self, url: str, shape: Shape, load: Load, processes: int, fsync: bool = False, own_port: bool = True
    ) -> None:
        folder = self._work / "journal"
        async with targets.ours(url, self._model, REPLY_TOKENS, processes, folder, fsync, own_port) as target:
            more = {"own_port": own_port} if processes > 1 else {}
            await self._measure("ours", target, shape, load, processes=processes, journal=True, fsync=fsync, **more)

    async def _measure_peer(self, url: str, shape: Shape, load: Load) -> None:
        if self._peer is not None:
            async with targets.peer(url, self._peer, self._work) as target:
                await self._measure("peer", target, shape, load, processes=1)

    async def _measure(self, name: str, target: targets.Target, shape: Shape, load: Load, **more: Any) -> None:
        measured = await drive(target, self._text, shape, load)
        row = {"target": name, **more, "prompt_tokens_at_turn_20": shape.prompt_tokens, **_row(measured, load)}
        self.rows.append(row)
        sys.stderr.write(json.dumps(row) + "\n")


def _row(measured: Measured, load: Load) -> dict[str, Any]:
    times = sorted(1000 * value for value in [*measured.latencies, *measured.unanswered])
    whole = [ended for ended in measured.ended if ended.get("calls")]
    return {
        "sessions": load.sessions,
        "offered_calls_per_second": load.calls_per_second,
        "calls": len(times),
        "unanswered": len(measured.unanswered),
        "failures": measured.failures,
        "calls_per_second": round(measured.completed / measured.seconds, 1),
        "p50_ms": round(statistics.median(times), 1) if times else None,
        "p99_ms": round(times[int(len(times) * 0.99)], 1) if times else None,
        "cpu_ms_per_call": round(1000 * measured.cpu_seconds / max(measured.completed, 1), 2),
        "sealed": len(whole),
        "sealed_exact": sum(
            e["complete"] and e["trajectories"] == 1 and e["trained_tokens"] == e["calls"] * REPLY_TOKENS for e in whole
        ),
    }


def _begins(part: str, wanted: Sequence[str]) -> bool:
    """Whether a part is wanted; says so if it is."""
    if part in wanted:
        sys.stderr.write(f"{datetime.datetime.now():%H:%M:%S} {part}\n")
    return part in wanted


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """The whole benchmark."""
    peer = None if options.without_peer else targets.ensure_peer(CACHE)
    described = machine.description()
    options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="proxy-benchmark-", dir=options.work) as work:
        benchmark = Benchmark(Path(work), options.quick, peer)
        result: dict[str, Any] = {
            "command": "python -m benchmarks.proxy" + " --quick" * options.quick,
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": described,
            "peer": f"{targets.PEER} {targets.PEER_VERSION}",
        }
        parts = options.only or ["phases", "latency", "saturation", "durability", "kept", "flat"]
        if _begins("phases", parts):
            result["phases"] = benchmark.phases()
        for tokens in (SHORT_TOKENS,) if options.quick else (SHORT_TOKENS, LONG_TOKENS):
            if _begins("latency", parts):
                await benchmark.latency(tokens)
        if _begins("saturation", parts):
            await benchmark.saturation()
        if not options.quick and _begins("durability", parts):
            await benchmark.durability()
        if _begins("kept", parts):
            result["memory_per_turn"] = await benchmark.kept()
        if _begins("flat", parts):
            result["memory_over_calls"] = await benchmark.flat()
        result |= {"loads": benchmark.rows, "added": added(benchmark.rows), "saturation": saturation(benchmark.rows)}
        return result | {"goals": goals(result)}


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proxy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about a minute; not for the table")
    parser.add_argument("--without-peer", action="store_true", help="leave the peer out (no network)")
    parser.add_argument("--only", nargs="+", help="parts: phases latency saturation durability kept flat")
    parser.add_argument("--work", type=Path, default=CACHE, help="folder on the disk that journals are measured on")
    parser.add_argument(
        "--output", type=Path, help="where the JSON goes; tables and a picture land beside it (default: stdout)"
    )
    return parser.parse_args(arguments)


def _is_part(options: argparse.Namespace) -> bool:
    return bool(options.only) and set(options.only) <= set(APART) and not options.quick


def main() -> None:
    """Run and write."""
    options = parse_arguments(sys.argv[1:])
    result = uvloop.run(run(options))
    if options.output is not None and options.output.exists() and _is_part(options):
        result = measured_again(result, options.only, json.loads(options.output.read_text("utf-8")))
    text = json.dumps(result, indent=1) + "\n"
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, "utf-8")
        options.output.with_suffix(".md").write_text(page(result), "utf-8")
        draw(result, options.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
