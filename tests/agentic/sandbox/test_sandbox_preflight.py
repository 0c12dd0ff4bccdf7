"""Each thing that a machine can lack is found, and the line says what to do."""

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


async def test_a_store_that_overlay_refuses_says_where_to_put_it() -> None:
    """/proc/self/fdinfo and the like cannot be made at will; the kernel's word is what is explained."""
    assert "put the workspace on ext4" in explain("sandbox x was not started: mount overlay on /tmp: Invalid argument")
    assert "user namespaces" in explain("id maps: Operation not permitted")


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
