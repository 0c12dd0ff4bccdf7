"""`python -m testbed up | down | status | build | run COMMAND...`: see docs/cluster-for-tests.md."""

import argparse
import os
import sys
import time

from testbed import network, pki
from testbed.access import HOST_VARIABLE
from testbed.cluster import Cluster
from testbed.errors import TestbedError
from testbed.layout import Layout


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed", description="A real Kubernetes cluster for tests.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="build what is missing, start what does not run")
    verbs.add_parser("down", help="end it and leave nothing")
    verbs.add_parser("build", help="only build, for a machine that is prepared beforehand")
    verbs.add_parser("status", help="which components run; exit code 1 if not all do")
    run = verbs.add_parser("run", help="run a command in the cluster's network as its administrator")
    run.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    cluster = Cluster(Layout.of_this_machine(), _Progress())
    try:
        return _do(options, cluster)
    except TestbedError as error:
        sys.stderr.write(f"testbed: {error}\n")
        return error.exit_code


def _do(options: argparse.Namespace, cluster: Cluster) -> int:
    match options.verb:
        case "up":
            cluster.up()
        case "down":
            cluster.down()
        case "build":
            cluster.build()
        case "status":
            for name, pid in cluster.status().items():
                sys.stdout.write(f"{name:24} {'down' if pid is None else f'pid {pid}'}\n")
            sys.stdout.write(f"{'logs':24} {cluster.layout.logs}\n")
            return 0 if cluster.is_up() else 1
        case _:
            enter_and_run(cluster, options.command)
    return 0


def enter_and_run(cluster: Cluster, command: list[str]) -> None:
    """Replaces this process."""
    network.enter(cluster.layout)
    os.environ["KUBECONFIG"] = str(cluster.layout.kubeconfig(pki.ADMIN))
    os.environ[HOST_VARIABLE] = cluster.layout.host_ip
    os.environ["PATH"] = f"{cluster.kubectl.parent}:{os.environ['PATH']}"
    words = command[1:] if command[:1] == ["--"] else command
    os.execvp(words[0], words)


class _Progress:
    """Lines with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        sys.stderr.write(f"testbed: {time.monotonic() - self._started:6.1f} s  {text}\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
