"""Graders as they go into tasks: one file each, that needs nothing of this project."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentic.tasks.errors import DataError
from agentic.tasks.packed import packed

GRADERS = ("unittest_judge.py", "mutation/grader.py", "swebench_grader.py")
ENDS = """
import subprocess, time
guard_process()
child = subprocess.Popen(["sh", "-c", "(sleep 300 &) ; exec sleep 300"])
while len(list_children()) != 2:
    time.sleep(0.01)
end_descendants(child.pid, 20.0)
print(list_children())
"""


@pytest.mark.parametrize("grader", GRADERS)
def test_a_packed_grader_runs_alone_and_ends_orphans_too(grader: str, tmp_path: Path) -> None:
    text = packed(grader).decode()
    assert "from agentic" not in text
    (tmp_path / "g.py").write_text(text.replace('if __name__ == "__main__":\n    main()\n', ENDS))
    done = subprocess.run([sys.executable, "-I", "g.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_module_that_shares_nothing_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"mutation/probe\.py has no line"):
        packed("mutation/probe.py")
