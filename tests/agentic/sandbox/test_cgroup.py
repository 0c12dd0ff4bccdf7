"""Where cgroups are made and what is written into them, on folders that look like each version."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from agentic.sandbox.errors import SandboxSetupError
from agentic.sandbox.local.cgroup import (
    CgroupsV1,
    CgroupsV2,
    Limits,
    SandboxCgroup,
    find_cgroups,
    is_oom_killed,
    remove_cgroups,
)

LIMITS = Limits(memory_bytes=64 << 20, max_processes=30, cpus=0.5)


def make_v1(root: Path, own: str) -> Path:
    for name in ("pids", "memory", "cpu"):
        (root / name / own.lstrip("/")).mkdir(parents=True)
        for folder in {root / name, root / name / own.lstrip("/")}:
            (folder / "cgroup.procs").touch()
    listing = root / "self"
    listing.write_text(f"3:pids:{own}\n2:memory:{own}\n1:cpu,cpuacct:{own}\n0::/\n")
    return listing


def make_v2(root: Path, own: str, controllers: str = "cpu io memory pids", enabled: str = "") -> Path:
    for folder in {root, root / own.lstrip("/")}:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text(enabled)
        (folder / "cgroup.procs").write_text("")
    listing = root / "self"
    listing.write_text(f"0::{own}\n")
    return listing


def test_version_1_limits_below_our_own_cgroup(tmp_path: Path) -> None:
    cgroups = find_cgroups(tmp_path, make_v1(tmp_path, "/pod/me"))
    assert isinstance(cgroups, CgroupsV1)
    made = cgroups.create("run.s", LIMITS)
    assert made.command_parent == str(tmp_path / "pids/pod/me/agentic-run.s")
    assert set(made.folders) == {str(tmp_path / name / "pod/me/agentic-run.s") for name in ("pids", "memory", "cpu")}
    assert (tmp_path / "pids/pod/me/agentic-run.s/pids.max").read_text() == "32"
    assert (tmp_path / "memory/pod/me/agentic-run.s/memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (tmp_path / "cpu/pod/me/agentic-run.s/cpu.cfs_quota_us").read_text() == "50000"


def test_version_1_falls_back_to_the_root_where_our_path_is_not_shown(tmp_path: Path) -> None:
    listing = make_v1(tmp_path, "/")
    listing.write_text("3:pids:/elsewhere\n2:memory:/elsewhere\n1:cpu:/elsewhere\n")
    assert find_cgroups(tmp_path, listing) == CgroupsV1(tmp_path / "pids", tmp_path / "memory", tmp_path / "cpu")


def test_version_2_enables_controllers_and_limits(tmp_path: Path) -> None:
    cgroups = find_cgroups(tmp_path, make_v2(tmp_path, "/scope"))
    assert cgroups == CgroupsV2(tmp_path / "scope")
    assert (tmp_path / "scope/cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    made = cgroups.create("run.s", LIMITS)
    folder = tmp_path / "scope/agentic-run.s"
    assert made == SandboxCgroup((str(folder),), str(folder))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "pids.max": "32",
        "memory.max": str(64 << 20),
        "cpu.max": "50000 100000",
    }


def test_version_2_without_delegated_controllers_says_so(tmp_path: Path) -> None:
    with pytest.raises(SandboxSetupError, match=r"controllers cpu, memory are not delegated.*sandbox.limits=none"):
        find_cgroups(tmp_path, make_v2(tmp_path, "/scope", controllers="pids"))


def test_no_cgroups_at_all_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("0::/\n")
    with pytest.raises(SandboxSetupError, match=r"no usable cgroups.*sandbox.limits=none"):
        find_cgroups(tmp_path, tmp_path / "self")


def test_cgroups_that_cannot_be_written_say_what_to_do(tmp_path: Path) -> None:
    """A file where the kernel would make a folder stands for a hierarchy that refuses: root may write anything else."""
    cgroups = find_cgroups(tmp_path, make_v1(tmp_path, "/"))
    (tmp_path / "pids/agentic-run.s").write_text("")
    with pytest.raises(SandboxSetupError, match=r"cgroups cannot be written.*sandbox.limits=none"):
        cgroups.create("run.s", LIMITS)


def test_kills_by_the_memory_limit_are_seen_in_both_versions(tmp_path: Path) -> None:
    cgroup = SandboxCgroup((str(tmp_path),), str(tmp_path))
    assert not is_oom_killed(cgroup)
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert not is_oom_killed(cgroup)
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert is_oom_killed(cgroup)


def test_real_cgroups_are_made_and_removed_with_what_is_in_them() -> None:
    made = find_cgroups().create(f"test.{os.getpid()}", LIMITS)
    child = Path(made.command_parent, "c1")
    child.mkdir()
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        for folder in (*made.folders, child):
            Path(folder, "cgroup.procs").write_text(str(process.pid))
        remove_cgroups(made.folders, patience_seconds=0.1)
        assert process.wait(timeout=10) == -signal.SIGKILL
    assert remove_cgroups(made.folders)
    assert not any(Path(folder).exists() for folder in made.folders)
