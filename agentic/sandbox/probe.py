"""Tries each isolation promise from inside a sandbox, and prints which are kept.

    python -m agentic.sandbox.probe [--store FOLDER] [--provider bubblewrap] [KEY=VALUE ...]

KEY=VALUE are settings of the provider, such as `namespace=rl` for one on Kubernetes. Pods are tried with promises of
their own: they have a network interface, which a policy closes but for the proxy's port, and their disk is bounded by
eviction, which is not tried since it would fill a node.

Exit code 0 when none is broken, 1 when one is, 78 when no sandbox could be started. `open` is what could not be tried,
or what the cluster would have to promise and does not.
"""

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from agentic.errors import AgenticError
from agentic.sandbox.base import ExecResult, Sandbox, SandboxImage, SandboxProvider, SandboxSpec
from agentic.sandbox.errors import SandboxLostError
from agentic.sandbox.images import base_image
from agentic.sandbox.providers import connect_cluster, make_provider, open_store
from agentic.sandbox.settings import MIB, KubeSandbox, SandboxSettings

RUN_ID = "probe"
Outcome = tuple[bool | None, str]
"""Kept, broken or, with None, open; and what was seen."""
Check = Callable[[Sandbox], Awaitable[Outcome]]

CONNECT = """
import socket, sys
for address in (("1.1.1.1", 53), ("8.8.8.8", 80), ("169.254.169.254", 80), ("10.0.0.1", 80)):
    try:
        socket.create_connection(address, timeout=0.5)
    except OSError:
        continue
    sys.exit(f"reached {address}")
"""
FORK_BOMB = """
import os, time
made = 0
try:
    while made < 5000:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""
TOKEN_PLACES = ("/var/run/secrets/kubernetes.io", "/run/secrets/kubernetes.io")
REACH_CLUSTER = """
import os, socket, sys
named = (os.environ.get("KUBERNETES_SERVICE_HOST", "10.96.0.1"), 443)
for address in (named, ("10.0.0.1", 443), ("172.20.0.1", 443), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, timeout=0.7)
    except OSError:
        continue
    sys.exit(f"reached {address}")
"""
RESOLVE = "import socket\nsocket.setdefaulttimeout(1)\nprint(socket.gethostbyname('kubernetes.default.svc'))"
HOG = "blocks = []\nwhile True: blocks.append(bytearray(8 << 20))"
PRIVILEGES = "grep -E '^(CapEff|CapPrm|CapBnd|CapAmb):' /proc/self/status; grep NoNewPrivs /proc/self/status"


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of the table."""

    text: str
    check: Check


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise, tried."""

    promise: str
    is_kept: bool | None
    """None: it was not tried, or is nobody's promise."""
    detail: str

    @property
    def word(self) -> str:
        return {True: "kept", False: "BROKEN", None: "open"}[self.is_kept]


def last_words(result: ExecResult) -> str:
    words = (result.text + result.error_text).strip().splitlines()
    return words[-1][:100] if words else f"exit code {result.exit_code}"


async def has_no_network(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec(["python3", "-c", CONNECT], timeout_seconds=20)
    return result.exit_code == 0, "no address answers" if result.exit_code == 0 else last_words(result)


async def has_only_loopback(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("cut -d: -f1 -s /proc/net/dev | tr -d ' '")
    return result.text.split() == ["lo"], f"interfaces: {' '.join(result.text.split())}"


async def hides_host_processes(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("ls /proc | grep -c '^[0-9]'")
    return int(result.text) < 10, f"{result.text.strip()} processes visible"


async def hides_host_files(sandbox: Sandbox) -> Outcome:
    with tempfile.NamedTemporaryFile(prefix="agentic-secret-") as secret:
        places = ["/etc/shadow", "/etc/ssh", "/var/lib", "/sys", "/boot", secret.name, str(Path.home() / ".profile")]
        result = await sandbox.exec(["/bin/sh", "-c", 'for p in "$@"; do ls -d "$p"; done', "sh", *places])
    return not result.stdout, result.text.strip() or "none of them visible"


async def cannot_write_host_programs(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("touch /usr/bin/agentic-probe || touch /opt/python/lib/agentic-probe")
    return result.exit_code != 0, last_words(result)


async def cannot_write_kernel_settings(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("echo x > /proc/sys/kernel/core_pattern || echo x > /proc/sysrq-trigger")
    return result.exit_code != 0, last_words(result)


async def has_no_privileges(sandbox: Sandbox) -> Outcome:
    rows = dict(line.split(":") for line in (await sandbox.exec(PRIVILEGES)).text.splitlines())
    no_new = rows.pop("NoNewPrivs", "0").strip()
    held = {name: int(value, 16) for name, value in rows.items()}
    return len(held) == 4 and not any(
        held.values()
    ) and no_new == "1", f"capabilities {max(held.values())}, NNP {no_new}"


async def cannot_gain_privileges(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("unshare --user --map-root-user true || mount -t tmpfs none /mnt")
    return result.exit_code != 0, last_words(result)


async def has_no_devices(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("find /dev -type b; mknod /tmp/disk b 8 0 && echo made")
    return not result.stdout, result.text.strip() or "no block device, none can be made"


async def survives_its_own_violence(sandbox: Sandbox) -> Outcome:
    await sandbox.exec("kill -9 1; kill -9 -1", timeout_seconds=10)
    result = await sandbox.exec("echo alive")
    return result.text == "alive\n", "alive after kill -9 1 and kill -9 -1"


async def bounds_processes(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec(["python3", "-S", "-E", "-c", FORK_BOMB], timeout_seconds=20)
    made = int(result.text) if result.text.strip().isdigit() else 0
    await sandbox.exec("kill -9 -1", timeout_seconds=10)
    return 0 < made < 2000, f"{made} processes, then refused" if made < 2000 else f"{made} processes and no end"


async def bounds_memory(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec(["python3", "-S", "-E", "-c", HOG], timeout_seconds=30)
    return result.exit_code == 137, f"exit code {result.exit_code}"


async def bounds_scratch_space(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("head -c 100G /dev/zero > /big; rm -f /big", timeout_seconds=30)
    return b"No space left" in result.stderr, last_words(result)


async def bounds_output(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("head -c 50000000 /dev/zero", timeout_seconds=30)
    return result.truncated and len(result.stdout) < 20 * MIB, f"{len(result.stdout)} bytes kept of 50000000"


async def bounds_time(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("setsid sleep 987 & sleep 988", timeout_seconds=0.5)
    left = (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 98[78]'")).text.strip()
    return result.timed_out and left == "0", f"timed out: {result.timed_out}, processes left: {left}"


async def has_no_token(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec(["/bin/sh", "-c", 'for p in "$@"; do ls -d "$p"; done', "sh", *TOKEN_PLACES])
    return not result.stdout, result.text.strip() or "no service-account token"


async def cannot_reach_the_cluster(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec(["python3", "-c", REACH_CLUSTER], timeout_seconds=20)
    return result.exit_code == 0, "no address answers" if result.exit_code == 0 else last_words(result)


async def cannot_resolve_names(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec(["python3", "-c", RESOLVE], timeout_seconds=20)
    return result.exit_code != 0, last_words(result)


async def is_filtered_by_seccomp(sandbox: Sandbox) -> Outcome:
    result = await sandbox.exec("grep -E '^Seccomp:' /proc/self/status")
    return result.text.split()[-1:] == ["2"], result.text.strip()


async def bounds_memory_of_a_pod(sandbox: Sandbox) -> Outcome:
    """The kernel kills the command, or the container with it, which loses the sandbox and says why."""
    try:
        return await bounds_memory(sandbox)
    except SandboxLostError as error:
        return "more memory than its limit" in str(error), str(error)[-100:]


async def bounds_processes_of_a_pod(sandbox: Sandbox) -> Outcome:
    """No pod can say how many it may have: it is the kubelet's to bound them."""
    try:
        is_kept, detail = await bounds_processes(sandbox)
    except SandboxLostError:
        is_kept, detail = False, "only its memory bounds them"
    return is_kept or None, detail if is_kept else f"{detail}: set podPidsLimit in the kubelets' configuration"


def reaches_only_the_proxys_port(settings: KubeSandbox, port: int) -> Check:
    async def check(sandbox: Sandbox) -> Outcome:
        from agentic.sandbox.kube.probing import try_proxy_port

        api = await connect_cluster(settings)
        try:
            return await try_proxy_port(api, settings, port, sandbox)
        finally:
            await api.close()

    return check


PROMISES = (
    Promise("no address of a network can be reached", has_no_network),
    Promise("no network interface but loopback", has_only_loopback),
    Promise("processes of the host are invisible", hides_host_processes),
    Promise("files of the host are invisible", hides_host_files),
    Promise("programs of the host cannot be changed", cannot_write_host_programs),
    Promise("kernel settings cannot be changed", cannot_write_kernel_settings),
    Promise("commands hold no capability", has_no_privileges),
    Promise("commands can gain no privilege", cannot_gain_privileges),
    Promise("no device of the host can be reached", has_no_devices),
    Promise("what runs inside cannot end the sandbox", survives_its_own_violence),
    Promise("processes are bounded", bounds_processes),
    Promise("memory is bounded", bounds_memory),
    Promise("scratch space is bounded", bounds_scratch_space),
    Promise("output is bounded", bounds_output),
    Promise("time is bounded, for all that a command started", bounds_time),
)

PROMISES_OF_PODS = (
    Promise("no service-account token is there", has_no_token),
    Promise("the API server and the node's metadata cannot be reached", cannot_reach_the_cluster),
    Promise("no address of a network can be reached", has_no_network),
    Promise("no name of the cluster can be resolved", cannot_resolve_names),
    Promise("processes of the host are invisible", hides_host_processes),
    Promise("kernel settings cannot be changed", cannot_write_kernel_settings),
    Promise("commands hold no capability", has_no_privileges),
    Promise("commands can gain no privilege", cannot_gain_privileges),
    Promise("system calls are filtered", is_filtered_by_seccomp),
    Promise("no device of the host can be reached", has_no_devices),
    Promise("what runs inside cannot end the sandbox", survives_its_own_violence),
    Promise("processes are bounded", bounds_processes_of_a_pod),
    Promise("memory is bounded", bounds_memory_of_a_pod),
    Promise("output is bounded", bounds_output),
    Promise("time is bounded, for all that a command started", bounds_time),
)


def promises_of(settings: SandboxSettings) -> tuple[Promise, ...]:
    """What sandboxes of these settings promise."""
    if not isinstance(settings, KubeSandbox):
        return PROMISES
    if settings.proxy_port is None:
        return PROMISES_OF_PODS
    text = "the proxy's port can be reached, and no other of its pod"
    return (Promise(text, reaches_only_the_proxys_port(settings, settings.proxy_port)), *PROMISES_OF_PODS)


async def probe(provider: SandboxProvider, image: SandboxImage, promises: Sequence[Promise]) -> list[Finding]:
    """Try every promise, each in a sandbox of its own; losing one breaks the promise that was tried. What an earlier
    probe left that was killed goes first."""
    await provider.sweep(RUN_ID)
    findings = []
    for promise in promises:
        sandbox = await provider.acquire(SandboxSpec(RUN_ID, f"{os.getpid()}-{secrets.token_hex(4)}", image))
        try:
            kept, detail = await promise.check(sandbox)
        except SandboxLostError as error:
            kept, detail = False, str(error)
        finally:
            await sandbox.release()
        findings.append(Finding(promise.text, kept, detail))
    return findings


def read_arguments() -> tuple[SandboxSettings, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m agentic.sandbox.probe", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--store", type=Path, help="the root-folder store; a temporary one when left out")
    parser.add_argument("--provider", default="bubblewrap", help="as in the setting sandbox.provider")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the provider")
    arguments = parser.parse_args()
    return read_settings(arguments.provider, arguments.settings), arguments.store


def read_settings(provider: str, words: Sequence[str]) -> SandboxSettings:
    """A provider's settings from KEY=VALUE words; a key such as `pool.by` is one of a part. Raises ValidationError."""
    fields: dict[str, Any] = {"provider": provider}
    for word in words:
        key, _, value = word.partition("=")
        *parts, last = key.split(".")
        place = fields
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = yaml.safe_load(value)
    settings: SandboxSettings = TypeAdapter(SandboxSettings).validate_python(fields)
    return settings


async def main() -> int:
    settings, folder = read_arguments()
    with tempfile.TemporaryDirectory(prefix="agentic-probe-") as temporary:
        store = open_store(folder or Path(temporary), settings)
        try:
            provider = make_provider(settings, store)
            try:
                image = await asyncio.to_thread(base_image, settings, store)
                findings = await probe(provider, image, promises_of(settings))
            finally:
                await provider.close()
        except AgenticError as error:
            sys.stderr.write(f"{error}\n")
            return 78
    width = max(len(finding.promise) for finding in findings)
    for finding in findings:
        sys.stdout.write(f"{finding.word:6}  {finding.promise:{width}}  {finding.detail}\n")
    return 1 if any(finding.is_kept is False for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
