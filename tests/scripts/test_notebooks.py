"""Notebooks from scripts: what a run keeps, and what it refuses."""

from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from scripts.notebooks import execute, read_notebook, read_script, shown


def script(folder: Path, text: str) -> Path:
    path = folder / "lesson.py"
    path.write_text(text)
    return path


def test_only_what_is_printed_is_kept(tmp_path: Path) -> None:
    text = "# %% [markdown]\n# Words.\n\n# %%\nimport sys\n\nprint(6 * 7)\nprint('noise', file=sys.stderr)\n6 * 7\n"
    notebook = read_script(script(tmp_path, text))
    execute(notebook)
    nbformat.write(notebook, tmp_path / "lesson.ipynb")
    written = read_notebook(tmp_path / "lesson.ipynb")
    assert shown(written) == ["42\n"]
    assert [output.output_type for output in written.cells[1].outputs] == ["stream"]
    assert written.cells[1].execution_count is None


def test_a_cell_that_fails_is_an_error(tmp_path: Path) -> None:
    notebook = read_script(script(tmp_path, "# %%\nassert 1 + 1 == 3\n"))
    with pytest.raises(CellExecutionError, match="AssertionError"):
        execute(notebook)


def test_the_same_script_gives_the_same_notebook(tmp_path: Path) -> None:
    path = script(tmp_path, '# %% [markdown] tags=["slow"]\n# # Title\n\n# %%\nprint(1)\n')
    assert read_script(path) == read_script(path)
    assert read_script(path).cells[0].metadata.tags == ["slow"]
