"""The Ray course as notebooks: they are their scripts, they run, and they print what they show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.notebooks import execute, read_notebook, read_script, shown
from scripts.tutorials import FOLDER, is_slow

SCRIPTS = sorted((FOLDER / "ray").glob("*.py"))
HINT = "run python -m scripts.notebooks docs/tutorials/ray/*.py"


VALUES = {
    1: ["0", "10", "[0, 10, 20, 30]"],
    2: ["[1, 2, 3, 4]", "[2, 3, 4, 5]", "[3, 4, 5, 6, 7, 8, 9, 10]", "4 4 8"],
    3: ["[10, 11, 12, 13]", "[8, 10, 8, 10]", "5"],
    4: ["4 4 1 1", "[32, 16, 64]", "[[86, 64], [64, 43]]", str([*range(8)]), "[0, 0, 0, 0, 2, 2, 2, 2]"],
}
"""What the chapters print, those of the guide among them."""
ON_GPUS = VALUES | {4: ["4 4 1 1", "[2048, 16, 4096]", "[[5504, 4096], [4096, 2752]]", *VALUES[4][3:]]}


def printed_by(script: Path) -> list[str]:
    notebook = read_script(script)
    execute(notebook)
    return shown(notebook)


def chapter(number: int) -> Path:
    return SCRIPTS[number - 1]


def test_the_course_has_four_chapters_and_a_notebook_for_each() -> None:
    assert [script.name[0] for script in SCRIPTS] == ["1", "2", "3", "4"]
    assert sorted((FOLDER / "ray").glob("*.ipynb")) == [script.with_suffix(".ipynb") for script in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script(script: Path) -> None:
    notebook = read_notebook(script.with_suffix(".ipynb"))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    assert notebook == read_script(script), HINT


@pytest.mark.parametrize("number", VALUES)
def test_a_notebook_shows_the_values_of_the_guide(number: int) -> None:
    notebook = read_notebook(chapter(number).with_suffix(".ipynb"))
    assert "".join(shown(notebook)).splitlines() == VALUES[number]


@pytest.mark.timeout(180)  # Ray and a kernel are started: 15 s alone, minutes beside much other work
@pytest.mark.parametrize("script", [path for path in SCRIPTS if not is_slow(path)], ids=lambda path: path.stem)
def test_a_quick_notebook_prints_what_it_shows(script: Path) -> None:
    assert printed_by(script) == shown(read_notebook(script.with_suffix(".ipynb"))), HINT


@pytest.mark.tutorials
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", [path for path in SCRIPTS if is_slow(path)], ids=lambda path: path.stem)
def test_a_slow_notebook_prints_what_it_shows(script: Path) -> None:
    assert printed_by(script) == shown(read_notebook(script.with_suffix(".ipynb"))), HINT


def on_gpus(script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(script), "--gpu"]
    return subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, timeout=800, check=False)


@pytest.mark.tutorials
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [2, 3, 4])
def test_where_there_is_no_gpu_the_flag_is_refused_in_one_line(number: int) -> None:
    done = on_gpus(chapter(number), CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "--gpu: PyTorch finds no GPU here")


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_chapter_prints_the_values_of_the_guide_on_gpus(number: int) -> None:
    done = on_gpus(chapter(number))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ON_GPUS[number]
