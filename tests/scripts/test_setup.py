"""`scripts/setup.sh` on machines that lack something.

What is faked: the machine. PATH holds only the named coreutils and small scripts in the place of uv and Python, so no
test downloads anything; the script itself is the real one. It was also run for real on clean clones.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COREUTILS = (
    "bash",
    "env",
    "uname",
    "id",
    "dirname",
    "cat",
    "sha256sum",
    "cut",
    "df",
    "awk",
    "rm",
    "mktemp",
    "ln",
    "mkdir",
)

UV = f"""
echo "$*" >>"$LOG"
case "$*" in
    "pip install --help") echo "  --override <OVERRIDE>" ;;
    "venv "*) mkdir -p .venv/bin && ln -sf {sys.executable} .venv/bin/python ;;
    "python find"* | "python install"*) exit 1 ;;
    "pip install "*) [ -z "${{UV_FAILS:-}}" ] ;;
esac
"""
SHIM_THAT_FAILS = 'echo "pyenv: version 3.12 is not installed" >&2; exit 127'
PYTHON_WITHOUT_VENV = """
case "$*" in
    "-c "*version_info*0*3*) ;;
    "-m pip --version") ;;
    "-m pip install --target .bootstrap "*)
        mkdir -p .bootstrap/bin && ln -s "$(command -v uv-to-install)" .bootstrap/bin/uv ;;
    *) exit 1 ;;
esac
"""


class Machine:
    """A copy of the project's setup files, and a PATH that holds what this machine has."""

    def __init__(self, folder: Path) -> None:
        self.project, self.bin, self.log = folder / "project", folder / "bin", folder / "uv.log"
        for name in ("scripts/setup.sh", "pyproject.toml", "constraints/cpu.txt", "constraints/overrides-cpu.txt"):
            self._copy(name)
        self._copy("packaging/vllm-cpu/pyproject.toml")
        self.bin.mkdir()
        for name in COREUTILS:
            found = shutil.which(name)
            assert found, f"{name} is missing on this machine"
            (self.bin / name).symlink_to(found)
        self.environment = {"PATH": str(self.bin), "HOME": str(folder), "LOG": str(self.log)}

    def _copy(self, name: str) -> None:
        (self.project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, self.project / name)

    def install(self, name: str, script: str = "exit 0") -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def install_python_312(self, path: Path | None = None) -> None:
        path = path or self.bin / "python3.12"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(sys.executable)

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.project / "scripts/setup.sh"],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def calls_of_uv(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def has_stamp(self) -> bool:
        return (self.project / ".venv/.stamp").exists()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def complete_machine(machine: Machine) -> Machine:
    machine.install_python_312()
    machine.install("uv", UV)
    machine.install("bwrap")
    return machine


def test_a_second_run_with_nothing_changed_does_nothing(complete_machine: Machine) -> None:
    assert complete_machine.setup().returncode == 0
    calls = complete_machine.calls_of_uv()
    again = complete_machine.setup()
    assert (again.returncode, again.stderr) == (0, "")
    assert complete_machine.calls_of_uv() == calls


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints/cpu.txt", "packaging/vllm-cpu/pyproject.toml"])
def test_a_changed_pin_installs_again(complete_machine: Machine, name: str) -> None:
    complete_machine.setup()
    calls = complete_machine.calls_of_uv()
    with (complete_machine.project / name).open("a") as file:
        file.write("# changed\n")
    assert complete_machine.setup().returncode == 0
    assert len(complete_machine.calls_of_uv()) > len(calls)


def test_packages_are_installed_under_the_pins_and_the_overrides(complete_machine: Machine) -> None:
    complete_machine.setup()
    installed = [call for call in complete_machine.calls_of_uv() if ".[cpu,dev]" in call]
    assert len(installed) == 1
    assert "--constraint constraints/cpu.txt" in installed[0]
    assert "--override constraints/overrides-cpu.txt" in installed[0]


def test_a_failed_installation_can_be_tried_again_and_leaves_no_stamp(complete_machine: Machine) -> None:
    failed = complete_machine.setup(UV_FAILS="yes")
    assert failed.returncode == 75
    assert "packages could not be installed" in failed.stderr.splitlines()[-1]
    assert not complete_machine.has_stamp()
    assert complete_machine.setup().returncode == 0
    assert complete_machine.has_stamp()


def test_an_environment_whose_python_is_gone_is_made_anew(complete_machine: Machine) -> None:
    complete_machine.setup()
    python = complete_machine.project / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nonexistent")
    assert complete_machine.setup().returncode == 0
    assert os.access(python, os.X_OK)


def test_a_shim_that_fails_is_passed_over_for_pyenvs_own(complete_machine: Machine) -> None:
    complete_machine.install("python3.12", SHIM_THAT_FAILS)
    complete_machine.install_python_312(complete_machine.project.parent / ".pyenv/versions/3.12.9/bin/python")
    assert complete_machine.setup().returncode == 0


def _no_python_312(machine: Machine) -> None:
    machine.install("python3.12", SHIM_THAT_FAILS)
    machine.install("uv", UV)


def _no_python(machine: Machine) -> None:
    machine.install("bwrap")


def _python_without_venv_and_pip(machine: Machine) -> None:
    machine.install("python3", 'case "$1" in -c) ;; *) exit 1 ;; esac')


def _another_system(machine: Machine) -> None:
    machine.install("uname", "echo Darwin")


def _full_disk(machine: Machine) -> None:
    machine.install("df", "echo header; echo '/dev/x 100 90 1048576 90% /'")


@pytest.mark.parametrize(
    ("machine_lacks", "code", "message"),
    [
        (_no_python_312, 78, "no Python 3.12"),
        (_no_python, 78, "no Python 3 (tried"),
        (_python_without_venv_and_pip, 78, "apt-get install python3-venv"),
        (_another_system, 78, "Darwin is not supported"),
        (_full_disk, 75, "1 GiB free"),
    ],
)
def test_what_is_missing_is_named_in_the_last_line(
    machine: Machine, machine_lacks: Callable[[Machine], None], code: int, message: str
) -> None:
    machine_lacks(machine)
    refused = machine.setup()
    assert refused.returncode == code
    assert message in refused.stderr.splitlines()[-1]
    assert len(refused.stderr.splitlines()) <= 2
    assert not (machine.project / ".venv").exists()


def test_pip_alone_is_enough_to_get_uv(machine: Machine) -> None:
    machine.install("uv-to-install", UV)
    machine.install("python3", PYTHON_WITHOUT_VENV)
    machine.install("bwrap")
    refused = machine.setup()
    assert "no Python 3.12" in refused.stderr
    assert machine.calls_of_uv()


def test_missing_bubblewrap_that_cannot_be_installed_is_a_warning(complete_machine: Machine) -> None:
    (complete_machine.bin / "bwrap").unlink()
    result = complete_machine.setup()
    assert result.returncode == 0
    assert "bubblewrap is missing" in result.stderr.splitlines()[-1]


def test_bubblewrap_is_installed_where_apt_may(complete_machine: Machine) -> None:
    bwrap = complete_machine.bin / "bwrap"
    bwrap.unlink()
    complete_machine.install("id", "echo 0")
    complete_machine.install("apt-get", f'case "$*" in *bubblewrap) ln -s /bin/true {bwrap} ;; esac')
    result = complete_machine.setup()
    assert result.returncode == 0
    assert "missing" not in result.stderr
    assert bwrap.exists()
