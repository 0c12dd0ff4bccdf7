"""What the cluster lacks is said before anything is installed for it, each thing in one line."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "cluster_needs.sh"
PROGRAMS = ("sh", "dirname", "uname", "id", "df", "awk", "tail", "cat")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with what the script calls, where root has all the disk in the world and nothing is built."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        found = subprocess.run(["/bin/sh", "-c", f"command -v {name}"], capture_output=True, text=True, check=True)
        (folder / name).symlink_to(Path(found.stdout.strip()).resolve())
    play(folder, "id", "echo 0")
    play(folder, "df", "echo head; echo disk 1 1 999999999 1% /")
    play(folder, "go", "echo go1.26.8")
    return folder


def play(folder: Path, name: str, body: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def check(machine: Path) -> tuple[int, list[str]]:
    environment = os.environ | {"PATH": str(machine), "XDG_CACHE_HOME": str(machine.parent / "cache")}
    done = subprocess.run([str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, [line for line in done.stderr.splitlines() if "memory" not in line]


def test_a_machine_that_has_everything_hears_nothing(machine: Path) -> None:
    assert check(machine)[1] == []


@pytest.mark.parametrize(
    ("program", "body", "line"),
    [
        ("id", "echo 1000", "run it as root"),
        ("df", "echo head; echo disk 1 1 9999999 1% /", "less than 15 GiB free: set XDG_CACHE_HOME"),
        ("go", "echo 'go: go.mod requires go >= 1.26.0 (running go 1.24.1)' >&2; exit 1", "running go 1.24.1"),
        ("uname", "echo Darwin", "it needs Linux"),
    ],
)
def test_each_thing_that_is_missing_is_said(machine: Path, program: str, body: str, line: str) -> None:
    play(machine, program, body)
    code, said = check(machine)
    assert code == 78
    assert len(said) == 1
    assert line in said[0]


def test_go_is_asked_for_only_while_there_is_something_to_build(machine: Path) -> None:
    (machine / "go").unlink()
    assert "install Go 1.26" in check(machine)[1][0]
    built = machine.parent / "cache/agentic-rl/cluster/tools/kube-apiserver-0123456789abcdef"
    built.mkdir(parents=True)
    play(built, "kube-apiserver", "true")
    assert check(machine)[1] == []
