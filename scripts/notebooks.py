"""Writes and runs notebooks that are pairs: a script in jupytext's percent format and a notebook with what it prints.

    python -m scripts.notebooks docs/tutorials/ray/*.py

The script is the source; the notebook beside it is made from it and run once, and keeps what was printed. What differs
from run to run is left out: times, counts of executions, and all that goes to the error stream. With jupytext in
Jupyter, saving either one writes the other.
"""

import argparse
import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

ROOT = Path(__file__).parents[1]
CELL_TIMEOUT_SECONDS = 600

_METADATA = {
    "jupytext": {
        "cell_metadata_filter": "tags",
        "formats": "ipynb,py:percent",
        "notebook_metadata_filter": "-all",
    },
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
}


def read_script(path: Path) -> NotebookNode:
    """The notebook that a script is, without outputs; the same script gives the same notebook."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(_METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return notebook


def read_notebook(path: Path) -> NotebookNode:
    """A notebook as it lies on the disk."""
    return nbformat.read(path, as_version=4)


def execute(notebook: NotebookNode) -> None:
    """Run all cells in a fresh kernel of this interpreter and keep what they print.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised, or an assert of it failed.
    """
    # Over sockets of the file system: on TCP any user of this machine could talk to the kernel.
    config = Config({"KernelManager": {"transport": "ipc"}})
    resources = {"metadata": {"path": str(ROOT)}}
    client = NotebookClient(
        notebook, config=config, kernel_name="python3", timeout=CELL_TIMEOUT_SECONDS, resources=resources
    )
    # Ray puts its workers behind all other processes of the machine, where they starve beside other tests.
    client.execute(env=os.environ | {"RAY_worker_niceness": "0"})
    notebook.metadata = nbformat.from_dict(_METADATA)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            text = _printed(cell)
            cell.execution_count = None
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []


def shown(notebook: NotebookNode) -> list[str]:
    """What each code cell of a notebook prints."""
    return [_printed(cell) for cell in notebook.cells if cell.cell_type == "code"]


def _printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.get("name") == "stdout")


def main() -> int:
    """Write the notebooks of the scripts that are named."""
    parser = argparse.ArgumentParser(prog="python -m scripts.notebooks", description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="+", type=Path, help="scripts in percent format")
    for script in parser.parse_args().scripts:
        notebook = read_script(script)
        execute(notebook)
        nbformat.write(notebook, script.with_suffix(".ipynb"))
        sys.stdout.write(f"{script.with_suffix('.ipynb')}: written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
