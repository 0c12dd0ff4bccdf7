"""Which goals the figures reach. A part that was not measured has no rows."""

from collections.abc import Iterator
from typing import Any

EXEC_SECONDS, EXEC_CPU_MS, FILE_MB_PER_SECOND = 5.0, 1.0, 100.0
"""Of 500 commands that sleep 3 s on a server in memory; of each of these; of 400 MB to and from it."""
TIMES_KUBELET, WARM_MS = 1.1, 100.0
ACK = "ACKEnvironment"
OURS = {"ours": "by WebSocket", "ours, exec server": "by exec server"}

type Goal = dict[str, Any]


def goals(parts: dict[str, Any]) -> list[Goal]:
    """Each goal with what was measured."""
    return [*_client(parts.get("client", {})), *_warm(parts.get("warm")), *_pods(parts)]


def _goal(name: str, measured: float, at: str, bound: float) -> Goal:
    met = {"most": measured <= bound, "least": measured >= bound, "above": measured > bound}[at]
    return {"goal": name, "at": at, "bound": bound, "measured": measured, "met": met}


def _client(part: dict[str, Any]) -> Iterator[Goal]:
    for way in ("websocket", "exec server"):
        if way not in part:
            continue
        at_once, file = part[way]["at once"], part[way]["file"]
        commands = f"{at_once['commands']} commands of 3 s, in memory, {way}"
        yield _goal(f"{commands} (s)", at_once["seconds"], "most", EXEC_SECONDS)
        yield _goal(f"{commands}: client CPU of each (ms)", at_once["client_cpu_ms_each"], "most", EXEC_CPU_MS)
        yield _goal(f"{commands}: threads", at_once["threads_added"], "most", 0)
        for name in ("upload", "download"):
            words = f"{name} of {file['megabytes']} MB, in memory, {way} (MB/s)"
            yield _goal(words, file[f"{name}_mb_per_second"], "least", FILE_MB_PER_SECOND)


def _warm(part: dict[str, Any] | None) -> Iterator[Goal]:
    if part is not None:
        beyond = round(part["ours"]["p50_ms"] - part["bare claim"]["p50_ms"], 1)
        yield _goal("warm acquire beyond a bare claim, p50 (ms)", beyond, "most", WARM_MS)


def _pods(parts: dict[str, Any]) -> Iterator[Goal]:
    rows = {(row["way"], row["concurrency"]): row for row in parts.get("exec", {}).get("commands", [])}
    for (way, concurrency), row in rows.items():
        if way not in OURS:
            continue
        if concurrency == 1:
            words = f"a command {OURS[way]}, p50, times kubelet's own exec"
            yield _goal(words, row["times_kubelet"], "most", TIMES_KUBELET)
        words = f"commands a second, {concurrency} at once, {OURS[way]}, beside {ACK}"
        at = "least" if concurrency == 1 else "above"
        yield _goal(words, row["per_second"], at, rows[ACK, concurrency]["per_second"])
    files = {row["way"]: row for row in parts.get("transfer", {}).get("files", [])}
    for name in ("upload", "download") if files else ():
        key = f"{name}_mb_per_second"
        yield _goal(f"{name}, MB/s, beside kubectl cp", files["ours"][key], "least", files["kubectl"][key])
