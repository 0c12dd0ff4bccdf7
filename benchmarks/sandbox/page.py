"""The figures as a page of tables, written beside the JSON."""

from collections.abc import Sequence
from typing import Any


def page(found: dict[str, Any], name: str) -> str:
    """Markdown."""
    machine, parts = found["machine"], found["parts"]
    texts = [
        "# Sandboxes in pods, beside other ways to the same pods",
        f"`make bench-sandbox` on {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux "
        f"{machine['kernel']}, Python {machine['python']}, Kubernetes {found['kubernetes']} with containerd and runc. "
        f"Client, control plane and node share the machine. All values: `{name}.json`.",
        f"![figures]({name}.png)",
        table("", "part measured_at load_before", [{"part": key, **part} for key, part in parts.items()]),
        table("Goals", "goal at bound measured met", found["goals"]),
        "ACKEnvironment in these is the one whose pods are isolated and limited as ours are. As it comes, "
        "its commands start faster than ours by WebSocket: see below.",
    ]
    for part, write in (
        ("exec", _exec),
        ("transfer", _transfer),
        ("warm", _warm),
        ("client", _client),
        ("many", _many),
    ):
        texts += write(parts[part]) if part in parts else []
    return "\n\n".join(text for text in texts if text) + "\n"


def _exec(part: dict[str, Any]) -> list[str]:
    columns = "way concurrency p50_ms p99_ms times_kubelet per_second client_cpu_ms_each failed"
    return [
        table("Commands", columns, part["commands"]),
        "Each runs `sh -c true` in a pod and checks its exit code. kubelet is the floor: its own exec endpoint without "
        "the API server; it and kubernetes client run the bare command. ACKEnvironment's pods are isolated and limited "
        "as ours are, or (not isolated) without seccomp's profile and limits. A command that failed is not timed.",
        table("Cold starts", "way count p50_ms p99_ms", [{"way": key, **row} for key, row in part["cold"].items()]),
    ]


def _transfer(part: dict[str, Any]) -> list[str]:
    columns = "way megabytes upload_mb_per_second download_mb_per_second"
    columns += " upload_client_cpu_ms_per_mb download_client_cpu_ms_per_mb is_exact"
    return [table(f"Transfers, {part['of']}", columns, part["files"])]


def _warm(part: dict[str, Any]) -> list[str]:
    rows = [{"way": key, **part[key]} for key in ("bare claim", "ours", "ACKEnvironment")]
    words = (
        "Out of an OpenKruise pool, its controller played by a stand-in; a bare claim is what that and the server take."
    )
    return [table("Warm acquire", "way count p50_ms p99_ms", rows), words]


def _client(part: dict[str, Any]) -> list[str]:
    rows = [
        {"way": key, **part[key]["at once"], **part[key]["file"], "p50_ms": part[key]["one after the other"]["p50_ms"]}
        for key in ("websocket", "exec server")
        if key in part
    ]
    columns = "way p50_ms commands seconds client_cpu_ms_each threads_added"
    columns += " upload_mb_per_second download_mb_per_second is_exact"
    words = (
        "No node and no TLS: commands are processes of this machine. The commands at once sleep 3 s each; of some "
        "rounds the one with the median CPU."
    )
    return [table("The client against a server in memory", columns, rows), words]


def _many(part: dict[str, Any]) -> list[str]:
    row = {**part, **part["acquire"], "release_cpu_ms_each": part["release"]["client_cpu_ms_each"]}
    columns = "sandboxes seconds p50_ms p99_ms client_cpu_ms_each client_memory_mib release_cpu_ms_each"
    return [table("Many held at once, on fake nodes", columns, [row])]


def table(title: str, columns: str, rows: Sequence[dict[str, Any]]) -> str:
    """`columns`: their keys, with spaces between."""
    keys = columns.split()
    lines = [f"## {title}\n"] if title else []
    lines += ["| " + " | ".join(name.replace("_", " ") for name in keys) + " |", "|" + "---|" * len(keys)]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in keys) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
