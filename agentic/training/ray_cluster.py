"""The Ray cluster of one machine: one head, started once a run, found again by whoever needs it, ended by run id.

`ensure` is what `launch-cluster` and `train` both call, so that retrying either alone works after cleanup. What was
started lies in `runs/<run-id>/ray.json`. A head is kept only if it was started with the same parameters, a process of
this run is its control service, and its port answers: a port alone may be somebody else's by now. Every process of the
head carries the run's marks (`agentic.processes`).
"""

import hashlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from agentic import files, processes
from agentic.errors import TransientError
from agentic.training.environment import ray_environment
from agentic.training.settings import RaySettings

_PROBE_TIMEOUT_SECONDS = 2.0


def ensure(run_id: str, settings: RaySettings, run_dir: Path, environment: dict[str, str], gpus: int) -> str:
    """The address of a running head; starts one when there is none.

    Args:
        environment: given to the head, hence to all its workers.
        gpus: logical GPUs; on a CPU one stands for the machine.

    Raises:
        TransientError: Ray did not start in time; its output is in `runs/<run-id>/logs/ray.log`.
    """
    parameters = {"settings": settings.model_dump(mode="json"), "environment": environment, "gpus": gpus}
    known = _read_record(run_dir)
    if known is not None and known["parameters"] == parameters and is_alive(run_id, run_dir, known["address"]):
        return str(known["address"])
    stop(run_id, run_dir)
    port = _free_port()
    _write_token(token_file(run_dir))
    variables = os.environ | ray_environment(run_id, run_dir.parents[1], token_file(run_dir)) | environment
    command = [_ray_executable(), "start", "--head", f"--port={port}", "--include-dashboard=false"]
    command += [f"--num-cpus={settings.cpus}", f"--num-gpus={gpus}", "--disable-usage-stats"]
    command += [f"--object-store-memory={settings.object_store_bytes}", f"--temp-dir={_temporary_dir(run_dir)}"]
    failure = _start(command, variables, run_dir / "logs" / "ray.log", settings.start_timeout_seconds)
    if failure is not None:
        stop(run_id, run_dir)
        raise TransientError(failure)
    address = f"127.0.0.1:{port}"
    files.write_json(run_dir / "ray.json", {"address": address, "parameters": parameters})
    return address


def _start(command: list[str], variables: dict[str, str], log: Path, timeout_seconds: float) -> str | None:
    """Start the head, which goes on by itself; why it did not start, if it did not."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            done = subprocess.run(
                command, env=variables, stdout=output, stderr=output, timeout=timeout_seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return f"Ray did not start within {timeout_seconds:g} s: see {log}, or raise ray.start_timeout_seconds"
    return f"Ray did not start (exit code {done.returncode}): see {log}" if done.returncode else None


def stop(run_id: str, run_dir: Path) -> int:
    """End the run's Ray processes and remove their files; safe to repeat. Returns how many processes there were."""
    ended = processes.end(run_id, run_dir.parents[1])
    (run_dir / "ray.json").unlink(missing_ok=True)
    token_file(run_dir).unlink(missing_ok=True)
    shutil.rmtree(_temporary_dir(run_dir), ignore_errors=True)
    return ended


def _read_record(run_dir: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((run_dir / "ray.json").read_text())
    except FileNotFoundError:
        return None
    return record


def token_file(run_dir: Path) -> Path:
    """What authenticates the run's own processes at its head."""
    return run_dir / "ray.token"


def is_alive(run_id: str, run_dir: Path, address: str) -> bool:
    """Whether this run's head answers at the address."""
    host, _, port = address.rpartition(":")
    with closing(socket.socket()) as probe:
        probe.settimeout(_PROBE_TIMEOUT_SECONDS)
        if probe.connect_ex((host, int(port))) != 0:
            return False
    return any(_is_control_service(pid, port) for pid in processes.find(run_id, run_dir.parents[1]))


def _is_control_service(pid: int, port: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "gcs_server" in words and f"--gcs_server_port={port}" in words


def _temporary_dir(run_dir: Path) -> Path:
    """Short and the run's own: Ray puts Unix sockets below it, whose paths may have 107 bytes at most."""
    return Path(tempfile.gettempdir()) / f"ray-{hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]}"


def _write_token(path: Path) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def _ray_executable() -> str:
    return str(Path(sys.executable).with_name("ray"))


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
