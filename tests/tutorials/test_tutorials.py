"""Every tutorial does what it shows: the quick ones always, the others by `make tutorials`."""

from pathlib import Path

import pytest

from scripts.tutorials import FOLDER, TutorialError, is_slow, read_blocks, run, tutorials


@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", [path for path in tutorials() if not is_slow(path)], ids=lambda path: path.name)
def test_a_quick_tutorial_shows_what_happens(path: Path) -> None:
    run(path)


@pytest.mark.tutorials
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", [path for path in tutorials() if is_slow(path)], ids=lambda path: path.name)
def test_a_slow_tutorial_shows_what_happens(path: Path) -> None:
    run(path)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tutorial.md"
    path.write_text(text)
    return path


def test_later_blocks_go_on_where_earlier_ones_were(tmp_path: Path) -> None:
    run(written(tmp_path, "```python\nx = 2\n```\nand\n```python\nprint(x * 3)\n```\n\n```output\n6\n```\n"))


def test_another_output_than_shown_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "```python\nprint(1)\n```\n```output\n2\n```\n")
    with pytest.raises(TutorialError, match=r"tutorial\.md:4 shows\n2"):
        run(path)


def test_a_block_that_raises_names_its_line_of_the_tutorial(tmp_path: Path) -> None:
    path = written(tmp_path, "text\n\n```python\nx = 1\nraise SystemError('no')\n```\n")
    with pytest.raises(TutorialError, match=r'(?s)File "tutorial", line 5.*SystemError: no'):
        run(path)


def test_commands_are_run_and_dots_stand_for_anything(tmp_path: Path) -> None:
    run(written(tmp_path, "```console\n$ echo one 2 three\none ... three\n$ true\n```\n"))


def test_a_command_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TutorialError, match="ended with 3"):
        run(written(tmp_path, "```console\n$ exit 3\n```\n"))


def test_blocks_with_a_second_word_are_only_shown(tmp_path: Path) -> None:
    run(written(tmp_path, "```python not-run\nraise SystemError\n```\n```yaml\nx: 1\n```\n"))
    assert [block.kind for block in read_blocks("```yaml\nx\n```\n```python not-run\n1\n```\n")] == ["yaml", ""]


def test_the_folder_has_tutorials() -> None:
    assert any(path.parent == FOLDER for path in tutorials())
