"""Whether this machine can keep the promises that sandbox settings ask for, before anything is downloaded.

Each finding is one line that says what to do. Programs and rights are looked at first, since their absence explains the
rest; then one sandbox is started and runs one command, which no list of conditions can replace.
"""

import asyncio
import os
import shutil
import uuid
from pathlib import Path

from agentic.errors import AgenticError, PermanentError, Problem
from agentic.sandbox.base import SandboxSpec
from agentic.sandbox.errors import SandboxSetupError
from agentic.sandbox.images import base_image
from agentic.sandbox.local.cgroup import CGROUP_ROOT, OWN_CGROUPS, Limits, find_cgroups, remove_cgroups
from agentic.sandbox.providers import connect_cluster, make_provider, make_source, open_store
from agentic.sandbox.settings import (
    MIB,
    AgentSandbox,
    BubblewrapSandbox,
    DockerSandbox,
    KruiseSandbox,
    PodmanSandbox,
    PodSandbox,
    SandboxSettings,
    UnsafeProcessSandbox,
)

PROBE_RUN_ID = "preflight"
PATIENCE = 120.0
"""Seconds for the first sandbox of a cluster, whose controller may not be there."""
USER_NAMESPACE_SWITCHES = ("kernel/unprivileged_userns_clone", "user/max_user_namespaces")


async def preflight(
    settings: SandboxSettings,
    store_root: Path,
    cgroup_root: Path = CGROUP_ROOT,
    own_cgroups: Path = OWN_CGROUPS,
    sysctl: Path = Path("/proc/sys"),
) -> list[Problem]:
    """What stands in the way; empty when a sandbox ran. The last three are for trying it on machines that lack them."""
    match settings:
        case BubblewrapSandbox():
            problems = [
                *check_program(settings.bwrap, "bubblewrap", "podman"),
                *check_user_namespaces(sysctl),
                *(check_cgroups(cgroup_root, own_cgroups) if settings.limits == "cgroup" else ()),
                *check_store(store_root),
            ]
        case PodmanSandbox() | DockerSandbox():
            problems = [*check_program(settings.program, settings.provider, "bubblewrap"), *check_store(store_root)]
        case UnsafeProcessSandbox():
            problems = check_store(store_root)
        case PodSandbox() | KruiseSandbox() | AgentSandbox():
            problems = await check_kubernetes(settings)
            settings = settings.model_copy(
                update={"start_timeout_seconds": min(settings.start_timeout_seconds, PATIENCE)}
            )
    return problems or await check_by_trying(settings, store_root)


def check_program(program: str, package: str, other: str) -> list[Problem]:
    if shutil.which(program):
        return []
    return [
        Problem(
            f"no program {program!r} in PATH: install {package} (apt-get install {package}) or set "
            f"sandbox.provider={other}"
        )
    ]


def check_user_namespaces(sysctl: Path) -> list[Problem]:
    """Root may make them unless there are to be none at all; others need the switch that some distributions have."""
    for name in USER_NAMESPACE_SWITCHES:
        path = sysctl / name
        is_off = path.exists() and path.read_text().strip() == "0"
        if is_off and (os.geteuid() != 0 or name.endswith("max_user_namespaces")):
            key = name.replace("/", ".")
            return [
                Problem(
                    f"user namespaces are switched off ({key} is 0): sysctl -w {key}=1, or set sandbox.provider=podman"
                )
            ]
    return []


def check_cgroups(root: Path, own_cgroups: Path) -> list[Problem]:
    try:
        cgroups = find_cgroups(root, own_cgroups)
        made = cgroups.create(f"{PROBE_RUN_ID}.{uuid.uuid4().hex[:8]}", Limits(64 * MIB, 16, 1.0))
    except SandboxSetupError as error:
        return [Problem(str(error))]
    remove_cgroups(made.folders)
    return []


def check_store(root: Path) -> list[Problem]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".preflight-{uuid.uuid4().hex[:8]}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        return [Problem(f"the image store {root} cannot be written ({error.strerror}): choose another workspace")]
    return []


async def check_kubernetes(settings: PodSandbox | KruiseSandbox | AgentSandbox) -> list[Problem]:
    """Rights, kinds, and what the API server says to our objects."""
    from agentic.sandbox.kube.preflight import check_cluster

    try:
        api = await connect_cluster(settings)
    except AgenticError as error:
        return [Problem(f"no cluster can be reached: {error}", not isinstance(error, PermanentError))]
    try:
        return await check_cluster(api, settings, make_source(settings, api).kinds)
    finally:
        await api.close()


async def check_by_trying(settings: SandboxSettings, store_root: Path) -> list[Problem]:
    """Start a sandbox on the base and run the interpreter in it."""
    store = open_store(store_root, settings)
    try:
        image = await asyncio.to_thread(base_image, settings, store)
        provider = make_provider(settings, store)
    except (AgenticError, OSError) as error:
        return [Problem(f"a sandbox cannot be prepared: {error}", not isinstance(error, PermanentError | OSError))]
    try:
        await provider.sweep(PROBE_RUN_ID)
        sandbox = await provider.acquire(SandboxSpec(PROBE_RUN_ID, uuid.uuid4().hex[:8], image))
        result = await sandbox.exec(["python3", "-S", "-E", "-c", "print(6 * 7)"], timeout_seconds=30)
    except AgenticError as error:
        return [Problem(explain(str(error)))]
    finally:
        await provider.close()
    if result.stdout.strip() != b"42":
        return [Problem(f"python3 does not run in a sandbox: {result.error_text.strip()[-200:]}")]
    return []


def explain(message: str) -> str:
    """Add what to do to what the kernel said."""
    if "mount overlay" in message:
        return f"{message}: put the workspace on ext4, xfs or tmpfs, or set sandbox.provider=podman"
    if "id maps" in message or "user namespace" in message or "Operation not permitted" in message:
        return f"{message}: run as root or allow unprivileged user namespaces, or set sandbox.provider=podman"
    return message
