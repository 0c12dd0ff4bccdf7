"""The Ray cluster of one machine: one head, started once a run, found again by whoever needs it, ended by run id.

`ensure` is what `launch-cluster`, `train` and `evaluate` all call, so that retrying any of them alone works after
cleanup. The address lies in `runs/<run-id>/ray.json`; a head that no longer answers is replaced. Every process carries
the run id in its environment (`agentic.processes`).
"""

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
    address = address_of(run_dir)
    if address is not None and is_alive(address):
        return address
    stop(run_id, run_dir)
    port = _free_port()
    logs = run_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    command = [_ray_executable(), "start", "--head", f"--port={port}"]
    command += [f"--num-cpus={settings.cpus}", f"--num-gpus={gpus}", "--include-dashboard=false"]
    command += [f"--object-store-memory={settings.object_store_bytes}", "--disable-usage-stats"]
    command += [f"--temp-dir={_temporary_dir(run_id)}"]
    _write_token(token_file(run_dir))
    variables = os.environ | ray_environment(run_id, token_file(run_dir)) | environment
    variables |= processes.marks(run_id, run_dir.parents[1])
    with (logs / "ray.log").open("ab") as log:
        try:
            done = subprocess.run(
                command, env=variables, stdout=log, stderr=log, timeout=settings.start_timeout_seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            stop(run_id, run_dir)
            raise TransientError(
                f"Ray did not start within {settings.start_timeout_seconds:g} s: see {logs / 'ray.log'}, or raise "
                "ray.start_timeout_seconds"
            ) from error
    if done.returncode:
        stop(run_id, run_dir)
        raise TransientError(f"Ray did not start (exit code {done.returncode}): see {logs / 'ray.log'}")
    address = f"127.0.0.1:{port}"
    files.write_json(run_dir / "ray.json", {"address": address})
    return address


def stop(run_id: str, run_dir: Path) -> int:
    """End the run's Ray processes and remove their files; safe to repeat. Returns how many processes there were."""
    ended = processes.end(run_id, run_dir.parents[1])
    (run_dir / "ray.json").unlink(missing_ok=True)
    token_file(run_dir).unlink(missing_ok=True)
    shutil.rmtree(_temporary_dir(run_id), ignore_errors=True)
    return ended


def address_of(run_dir: Path) -> str | None:
    """The recorded address, whether or not somebody answers there."""
    try:
        return str(json.loads((run_dir / "ray.json").read_text())["address"])
    except FileNotFoundError:
        return None


def token_file(run_dir: Path) -> Path:
    """What authenticates the run's own processes at its head."""
    return run_dir / "ray.token"


def is_alive(address: str) -> bool:
    """Whether something listens at a head's address."""
    host, _, port = address.rpartition(":")
    with closing(socket.socket()) as probe:
        probe.settimeout(_PROBE_TIMEOUT_SECONDS)
        return probe.connect_ex((host, int(port))) == 0


def _temporary_dir(run_id: str) -> Path:
    """Short: Ray puts Unix sockets below it, whose paths may have 107 bytes at most."""
    return Path(tempfile.gettempdir()) / f"ray-{run_id}"[:40]


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
