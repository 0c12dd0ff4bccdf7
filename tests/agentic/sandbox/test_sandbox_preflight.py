"""Each thing that a machine can lack is found, and the line says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from agentic.sandbox.local.state import SandboxState, own_identity, read_state
from agentic.sandbox.preflight import explain, preflight
from agentic.sandbox.settings import BubblewrapSandbox, PodmanSandbox, SandboxSettings, UnsafeProcessSandbox


async def test_a_machine_that_has_everything_has_no_problem(tmp_path: Path) -> None:
    assert await preflight(BubblewrapSandbox(), tmp_path / "store") == []


async def test_no_bubblewrap_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    problems = await preflight(BubblewrapSandbox(), tmp_path / "store")
    assert [problem.message for problem in problems] == [
        "no program 'bwrap' in PATH: install bubblewrap (apt-get install bubblewrap) or set sandbox.provider=podman"
    ]
    problems = await preflight(PodmanSandbox(), tmp_path / "store")
    assert "set sandbox.provider=bubblewrap" in problems[0].message


async def test_no_user_namespaces_names_the_switch(tmp_path: Path) -> None:
    (tmp_path / "sys" / "user").mkdir(parents=True)
    (tmp_path / "sys" / "user" / "max_user_namespaces").write_text("0\n")
    problems = await preflight(BubblewrapSandbox(), tmp_path / "store", sysctl=tmp_path / "sys")
    assert "user.max_user_namespaces is 0" in problems[0].message


async def test_no_cgroup_rights_is_a_problem_unless_one_goes_without(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("0::/\n")
    arguments = {"cgroup_root": tmp_path, "own_cgroups": tmp_path / "self"}
    problems = await preflight(BubblewrapSandbox(), tmp_path / "store", **arguments)
    assert "set sandbox.limits=none" in problems[0].message
    assert await preflight(BubblewrapSandbox(limits="none"), tmp_path / "store", **arguments) == []


async def test_a_store_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for settings in (BubblewrapSandbox(), UnsafeProcessSandbox()):
        problems = await preflight(settings, tmp_path / "file" / "store")
        assert "cannot be written" in problems[0].message


async def test_a_sandbox_that_does_not_start_is_a_problem(tmp_path: Path) -> None:
    problems = await preflight(BubblewrapSandbox(bwrap="/bin/false"), tmp_path / "store")
    assert len(problems) == 1
    assert "was not started" in problems[0].message


NESTED = """
set -e
cd "$1"
mkdir -p lower upper work once upper2 work2 twice
mount -t tmpfs tmpfs work && mkdir work/upper work/work work/upper2 work/work2
mount -t overlay overlay -o "$2lowerdir=lower,upperdir=work/upper,workdir=work/work" once
mount -t overlay overlay -o "$2lowerdir=once,upperdir=work/upper2,workdir=work/work2" twice
exec "$3" -c "$4" "$1/twice/store"
"""
PREFLIGHT = """
import asyncio, sys
from pathlib import Path
from agentic.sandbox.preflight import preflight
from agentic.sandbox.settings import BubblewrapSandbox
for problem in asyncio.run(preflight(BubblewrapSandbox(limits="none"), Path(sys.argv[1]))):
    print(problem.message)
"""


def test_a_store_where_overlay_fails_says_where_to_put_it(tmp_path: Path) -> None:
    """On an overlay over an overlay the kernel refuses one more."""
    is_root = os.geteuid() == 0
    unshare = ["unshare", "--mount"] if is_root else ["unshare", "--mount", "--map-root-user"]
    arguments = [str(tmp_path), "" if is_root else "userxattr,", sys.executable, PREFLIGHT]
    ran = subprocess.run(
        [*unshare, "sh", "-c", NESTED, "sh", *arguments], capture_output=True, text=True, timeout=50, check=True
    )
    assert "mount overlay" in ran.stdout
    assert ran.stdout.endswith("put the workspace on ext4, xfs or tmpfs, or set sandbox.provider=podman\n")
    assert ran.stdout.count("\n") == 1


def test_a_refusal_by_the_kernel_is_given_a_remedy() -> None:
    assert "allow unprivileged user namespaces" in explain("id maps: Operation not permitted")
    assert explain("something else") == "something else"


def test_settings_pick_the_provider_and_refuse_what_does_not_fit() -> None:
    adapter: TypeAdapter[SandboxSettings] = TypeAdapter(SandboxSettings)
    assert isinstance(adapter.validate_python({"provider": "unsafe-process"}), UnsafeProcessSandbox)
    with pytest.raises(ValidationError, match="memory_gb"):
        adapter.validate_python({"provider": "bubblewrap", "memory_gb": 1})
    with pytest.raises(ValidationError, match="lower the first or raise the second"):
        BubblewrapSandbox(memory_mb=100, scratch_mb=80)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"owner": {}}', '{"owner": 3, "cgroups": [], "init": null}'])
def test_a_state_file_cut_short_counts_as_a_dead_owners(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert read_state(tmp_path / "state.json") is None


def test_an_owner_is_itself_and_not_a_later_process_with_its_id() -> None:
    me = own_identity()
    assert SandboxState(me).owner == own_identity()
    assert me.started > 0
