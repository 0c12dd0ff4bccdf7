"""docs/tasks.md: the commands that it shows, run as they stand there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs/tasks.md").read_text()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_the_first_two_steps_make_a_task_that_is_good(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    script = f"set -e\n{blocks[0]}\n{blocks[1].replace('check .', 'check . --json')}"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=55
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (report,) = json.loads(done.stdout)
    assert report == {"task": "add-numbers", "verdict": "good", "reference": 1.0, "empty": 0.0, "problems": []}


def test_the_third_step_makes_a_data_set_of_such_a_folder() -> None:
    from workflows import submit
    from workflows.settings import load_settings

    (line,) = re.findall(r"^python workflows/submit.py (.*)$", DOCUMENT, re.MULTILINE)
    options, rest = submit.parse(line.split())
    settings = load_settings(options.profile or "", [word for word in rest if "=" in word], {})
    assert (settings.data.source, settings.data.path) == ("folder", "my-tasks")


def test_the_figures_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "docs/results/mutation.json").read_text())
    rows = re.findall(r"^\| ([\w-]+) ([\d.]+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \|$", DOCUMENT, re.MULTILINE)
    assert len(rows) >= 3
    assert {
        name: (version, int(tests), int(tried), int(tasks), float(each))
        for name, version, tests, tried, tasks, each in rows
    } == {
        name: (one["version"], one["tests"], sum(one["tried"].values()), one["tasks"], one["seconds_per_task"])
        for name, one in measured.items()
    }
    parity = json.loads((ROOT / "docs/results/swebench-parity.json").read_text())
    assert f"{parity['agree']} of {parity['patches']} verdicts agree" in DOCUMENT
