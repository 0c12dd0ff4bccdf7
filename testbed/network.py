"""The cluster's network namespace: a bridge for pods, loopback for the control plane, and no way out.

Servers in it may listen on any port without meeting those of the machine. Tests enter it as a whole (`enter`), so that
they reach the API server, pods reach what tests start on the bridge, and nothing reaches anything else.
"""

import os
import subprocess

from testbed.errors import StartError
from testbed.layout import Layout

BRIDGE = "cni0"


def make(layout: Layout) -> None:
    """Does nothing where it exists."""
    if layout.network_namespace.exists():
        return
    _run("ip", "netns", "add", layout.name)
    try:
        _furnish(layout)
    except StartError:
        remove(layout)
        raise


def _furnish(layout: Layout) -> None:
    prefix = layout.pod_network.rpartition("/")[2]
    for words in (
        f"link set lo up|link add {BRIDGE} type bridge|addr add {layout.host_ip}/{prefix} dev {BRIDGE}"
        # Nothing is behind this route: kubelet and kube-proxy only want that there is one.
        f"|link set {BRIDGE} up|route add default dev {BRIDGE}"
    ).split("|"):
        _run("ip", "-n", layout.name, *words.split())
    # The second lets iptables, and with it network policies, see packets between two pods of one bridge.
    for setting in ("net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1"):
        _run("nsenter", f"--net={layout.network_namespace}", "--", "sysctl", "-qw", setting)


def remove(layout: Layout) -> None:
    if layout.network_namespace.exists():
        _run("ip", "netns", "del", layout.name)


def enter(layout: Layout) -> None:
    """This thread, and all that it starts from now on, lives in the cluster's network."""
    try:
        namespace = os.open(layout.network_namespace, os.O_RDONLY)
    except FileNotFoundError as error:
        raise StartError(f"there is no cluster named {layout.name}: run make cluster first") from error
    try:
        os.setns(namespace, os.CLONE_NEWNET)
    finally:
        os.close(namespace)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
