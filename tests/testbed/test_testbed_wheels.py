"""Wheels packed from the installed environment are wheels: an installer takes them offline and gets the same."""

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from testbed.errors import MachineError
from testbed.wheels import closure, write_wheels

ROOT = Path(__file__).resolve().parents[2]


def test_what_a_package_needs_comes_along_by_its_extras_and_markers() -> None:
    found = closure(["rich==0"])
    assert {"rich", "pygments", "markdown-it-py", "mdurl"} <= set(found)
    assert "ipywidgets" not in found, "only with an extra that was not asked for"


def test_what_is_wanted_and_not_installed_is_told() -> None:
    with pytest.raises(MachineError, match="no-such-package is not installed here"):
        closure(["no-such-package"])


def test_an_installer_takes_them_without_an_index(tmp_path: Path) -> None:
    wheels = write_wheels(["rich"], tmp_path / "wheels")
    assert all(zipfile.ZipFile(path).testzip() is None for path in wheels)
    uv = shutil.which("uv") or str(ROOT / ".bootstrap/bin/uv")
    where = ["--no-index", "--find-links", str(tmp_path / "wheels"), "--target", str(tmp_path / "out"), "--no-cache"]
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, *where, "rich"]
    subprocess.run(command, check=True, capture_output=True)
    shown = "import rich, sys; from importlib.metadata import version; print(version('rich'), rich.__file__)"
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'out')!r}); {shown}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [version("rich"), f"{tmp_path}/out/rich/__init__.py"]
