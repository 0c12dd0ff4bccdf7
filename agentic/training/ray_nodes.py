"""A Ray cluster that a launcher has started: where it is, and whether all of its nodes have joined.

Slurm and SkyPilot start Ray on their nodes and then the workflow on the first one, with the head's address in
`AGENTIC_RAY_ADDRESS`. It is no setting: after a requeue the nodes are others, and a step's inputs must not change with
them. Such a cluster is used and never ended from here; that is its launcher's business.

`python -m agentic.training.ray_nodes --nodes 2` waits until they are there: exit code 0, or 75 when they did not come.
"""

import argparse
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from agentic.errors import TransientError

if TYPE_CHECKING:
    from types import ModuleType

ADDRESS_VARIABLE = "AGENTIC_RAY_ADDRESS"
"""`HOST:PORT` of the head, an IPv6 address in brackets."""

PROBE_TIMEOUT_SECONDS = 5.0


def launched_head(environment: Mapping[str, str]) -> str | None:
    """The head that a launcher has started, if one has.

    Raises:
        TransientError: it does not answer.
    """
    address = environment.get(ADDRESS_VARIABLE)
    if not address:
        return None
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_TIMEOUT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise TransientError(
            f"{ADDRESS_VARIABLE} is {address} but no Ray head answers there ({error}): let the launcher start it again"
        ) from error
    return address


def await_nodes(
    alive: Callable[[], list[str]],
    wanted: int,
    *,
    polls: int,
    say: Callable[[str], None],
    pause: Callable[[], None],
) -> None:
    """Ask until so many nodes are alive.

    Raises:
        TransientError: they are not after the last poll; names those that are.
    """
    for poll in range(1, polls + 1):
        nodes = alive()
        say(f"{len(nodes)} of {wanted} nodes have joined ({', '.join(nodes) or 'none'}), poll {poll} of {polls}")
        if len(nodes) >= wanted:
            return
        if poll < polls:
            pause()
    raise TransientError(
        f"only {len(nodes)} of {wanted} Ray nodes have joined after {polls} polls ({', '.join(nodes) or 'none'}): see "
        "what the others have printed; a wrong network interface is the usual reason"
    )


def main(arguments: Sequence[str]) -> int:
    """Wait as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m agentic.training.ray_nodes", description=await_nodes.__doc__)
    parser.add_argument("--address", required=True, help="HOST:PORT of the head")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--polls", type=int, default=30)
    parser.add_argument("--poll-seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    import ray

    try:
        await_nodes(
            lambda: _alive(ray, options.address),
            options.nodes,
            polls=options.polls,
            say=_say,
            pause=lambda: time.sleep(options.poll_seconds),
        )
    except TransientError as error:
        _say(str(error))
        return 75
    finally:
        ray.shutdown()
    return 0


def _alive(ray: "ModuleType", address: str) -> list[str]:
    """Addresses of living nodes. A head whose port answers may take nobody yet: on a busy node that lasts a while."""
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            _say(f"not yet: {' '.join(str(error).split())[:200]}")
            return []
    return sorted(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"])


def _say(line: str) -> None:
    sys.stdout.write(f"ray: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
