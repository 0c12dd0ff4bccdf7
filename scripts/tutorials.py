"""Runs a tutorial and holds what it shows against what happens.

    python -m scripts.tutorials docs/tutorials/tools.md

A tutorial is a Markdown file, or a Python script (a notebook as jupytext writes it) whose own asserts are its check.
README files and names that begin with `_` are none. In Markdown, fenced blocks are told apart by the first word behind
the fence:

    python          run, all blocks of a file in one fresh interpreter, so that later ones go on where earlier ones were
    console         lines that begin with `$ ` are run by bash, the others are what they print
    output          what the `python` block before it prints
    anything else   shown only, as is a block with a second word (`python not-run`)

Shown outputs are compared as doctest does: `...` stands for anything, white space may differ in kind and length. A file
whose first line is `<!-- slow -->` (`# slow` in a script) takes longer than a few seconds. `TUTORIAL_SHORT=1` is set
while a tutorial runs, for scripts that can do less.
"""

import argparse
import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "tutorials"
TIMEOUT_SECONDS = 900.0
RAY_NOT_STARTED = "The current node timed out during startup"
"""Ray gives its own start 30 seconds, whatever else a machine does; such a tutorial has another try."""
SLOW = ("<!-- slow -->", "# slow", '# %% [markdown] tags=["slow"]')

_BLOCK = re.compile(r"^```(?P<words>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "\x1e"
"""Printed between blocks, so that one interpreter's output can be told apart by block."""
_CHECKER = doctest.OutputChecker()


class TutorialError(Exception):
    """A tutorial that does not do what it shows."""


class Block(NamedTuple):
    """One fenced block."""

    kind: str
    body: str
    line: int


def tutorials() -> list[Path]:
    """All of them, by name."""
    found = (path for path in FOLDER.rglob("*") if path.suffix in (".md", ".py"))
    return sorted(path for path in found if path.name != "README.md" and not path.name.startswith("_"))


def is_slow(path: Path) -> bool:
    """Whether a tutorial takes longer than a few seconds."""
    return path.read_text().startswith(SLOW)


def run(path: Path) -> None:
    """Run one.

    Raises:
        TutorialError: it failed, or printed something else than it shows.
    """
    if path.suffix == ".py":
        _execute([sys.executable, str(path)], path)
        return
    blocks = read_blocks(path.read_text())
    _run_python(path, blocks)
    for block in blocks:
        if block.kind == "console":
            _run_console(path, block)


def read_blocks(text: str) -> list[Block]:
    """The fenced blocks of a Markdown text; those that are only shown have no kind."""
    blocks = []
    for found in _BLOCK.finditer(text):
        words = found["words"].split()
        kind = words[0] if len(words) == 1 else ""
        blocks.append(Block(kind, found["body"], text.count("\n", 0, found.start()) + 1))
    return blocks


def _run_python(path: Path, blocks: list[Block]) -> None:
    parts = [block for block in blocks if block.kind == "python"]
    if not parts:
        return
    code = f"print({_MARK!r}, end='', flush=True)\n".join(_at_line(block) for block in parts)
    printed = _execute([sys.executable, "-c", code], path).split(_MARK)
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.kind == "python" and following is not None and following.kind == "output":
            _compare(path, following.line, following.body, printed[parts.index(block)])


def _at_line(block: Block) -> str:
    """A block as a statement of its own, whose tracebacks name its line of the tutorial."""
    source = "\n" * block.line + block.body
    return f"exec(compile({source!r}, 'tutorial', 'exec'), globals())\n"


def _run_console(path: Path, block: Block) -> None:
    commands: list[tuple[str, list[str]]] = []
    for line in block.body.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif commands:
            commands[-1][1].append(line)
    for command, shown in commands:
        printed = _execute(["bash", "-c", command], path)
        if shown:
            _compare(path, block.line, "\n".join(shown) + "\n", printed)


def _execute(words: list[str], path: Path) -> str:
    folder = str(Path(sys.executable).parent)
    # Ray puts its workers behind all other processes of the machine, where they starve beside other tests.
    variables = os.environ | {"TUTORIAL_SHORT": "1", "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
    variables["PATH"] = f"{folder}{os.pathsep}{variables.get('PATH', '')}"
    done = _once(words, path, variables)
    if done.returncode and RAY_NOT_STARTED in done.stderr:
        done = _once(words, path, variables)
    if done.returncode:
        raise TutorialError(f"{path.name} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def _once(words: list[str], path: Path, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TutorialError(f"{path.name} ran longer than {TIMEOUT_SECONDS:g} s") from error


def _compare(path: Path, line: int, shown: str, printed: str) -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not _CHECKER.check_output(shown, printed, options):
        raise TutorialError(f"{path.name}:{line} shows\n{shown}\nbut what was printed is\n{printed}")


def main() -> int:
    """Run those that are named, or all; 1 when one does not do what it shows."""
    parser = argparse.ArgumentParser(prog="python -m scripts.tutorials", description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="tutorials; all of docs/tutorials when none is named")
    for path in parser.parse_args().paths or tutorials():
        try:
            run(path)
        except TutorialError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        sys.stdout.write(f"{path.name}: as shown\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
