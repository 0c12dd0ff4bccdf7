import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic.report.comparison import Comparison, compare
from agentic.report.errors import ReportError

RunFolder = Callable[..., Path]


def run_module(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentic.report.comparison", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_runs_and_control_become_one_file_and_one_picture(run_folder: RunFolder, tmp_path: Path) -> None:
    runs = [run_folder(f"demo-{seed}", seed=seed) for seed in (1, 2)]
    out = tmp_path / "results" / "demo"
    done = run_module(*runs, "--control", run_folder("control", learns=False), "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    comparison = Comparison.model_validate_json(out.with_suffix(".json").read_text())
    assert [(run.run_id, run.seed, run.is_control) for run in comparison.runs] == [
        ("demo-1", 1, False),
        ("demo-2", 2, False),
        ("control", 1, True),
    ]
    assert comparison.machine.cores > 0
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    tables = out.with_suffix(".md").read_text()
    assert "| seed 1 | repair/same-template | 0.297 (38/128) | 0.750 (96/128) | +0.453 | +0.336 to +0.552 |" in tables
    assert "| train | 341.0 | 341.0 | 341.0 |" in tables
    assert "![Resolve rates over training and gains of all runs](demo.png)" in tables


def test_figures_are_those_of_the_runs(run_folder: RunFolder) -> None:
    comparison = compare([run_folder("demo-1")], [run_folder("control", learns=False)], "demo")
    gains = [run.splits["repair/same-template"].gain for run in comparison.runs]
    assert gains == [pytest.approx(58 / 128), 0.0]
    assert comparison.runs[0].phases["train"] == 341.0


def test_a_run_without_an_evaluation_is_refused_in_one_line(run_folder: RunFolder, tmp_path: Path) -> None:
    run = run_folder()
    (run / "evaluation.json").unlink()
    refused = run_module(run, "--out", tmp_path / "out")
    assert refused.returncode == 78
    assert refused.stderr.splitlines() == [f"{run} has no evaluation: finish the run before it is compared"]
    assert not (tmp_path / "out.json").exists()


def test_a_run_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="is no folder"):
        compare([tmp_path / "nothing"], [], "demo")
