"""What the pod that reads a run's volume prints, run as it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from workflows.argo.volume import NO_FILE, PRINT


@pytest.mark.parametrize(
    ("patterns", "printed", "code"),
    [
        (["logs/a.log", "logs/a-[0-9]*.log"], "a a-2 a-10 ", 0),
        (["logs/a-2.log", "logs/a-10.log"], "a-2 a-10 ", 0),
        (["logs/b.log"], "", NO_FILE),
    ],
)
def test_files_come_by_their_number_and_none_is_told_apart(
    tmp_path: Path, patterns: list[str], printed: str, code: int
) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("a-10", "a-2", "a", "other"):
        (tmp_path / f"logs/{name}.log").write_text(f"{name} ")
    done = subprocess.run([sys.executable, "-c", PRINT, str(tmp_path), *patterns], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (printed, code)
