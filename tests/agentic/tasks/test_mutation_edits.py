"""Mistakes for real code: found by the syntax tree, each one a change that compiles and that stays in its function."""

import ast
import sys
from pathlib import Path

import pytest

from agentic.tasks.mutation.edits import apply_edit, find_edits

SOURCE = '''\
"""Ünïcode before the code: offsets are bytes."""

LIMIT = 3


def clamp(values, low, high):
    """At most LIMIT + 1 of them, low < high."""
    if low > high:
        raise ValueError("low < high")
    kept = [min(max(v, low), high) for v in values if v is not None and v >= 0]
    return kept[: LIMIT + 1], kept[0], "é" + str(sum(kept)), True


class Box:
    @property
    def first(self):
        def inner(n):
            return n - 1

        return inner(self.n) if not self.empty else None
'''


def changes(source: str) -> set[tuple[str, str, str, str]]:
    return {(edit.function, str(edit.kind), edit.old.strip(), edit.new.strip()) for edit in find_edits(source)}


def test_each_kind_of_mistake_is_found_where_it_fits() -> None:
    found = changes(SOURCE)
    for expected in [
        ("clamp", "guard", "low > high", "False"),
        ("clamp", "bounds", ">", "<="),
        ("clamp", "condition", "and", "or"),
        ("clamp", "swap", "max(v, low), high", "high, max(v, low)"),
        ("clamp", "index", "0", "-1"),
        ("clamp", "fold", "sum", "len"),
        ("clamp", "truth", "True", "False"),
        ("clamp", "number", "0", "1"),
        ("Box.first.inner", "operators", "-", "+"),
        ("Box.first", "condition", "not", ""),
    ]:
        assert expected in found, expected


def test_nothing_outside_of_functions_and_nothing_in_texts_is_changed() -> None:
    for edit in find_edits(SOURCE):
        changed = apply_edit(SOURCE, edit)
        assert "LIMIT = 3" in changed
        assert '"""At most LIMIT + 1 of them, low < high."""' in changed
        assert '"low < high"' in changed


def test_a_first_line_is_that_of_the_code_object() -> None:
    scope: dict[str, object] = {}
    exec(compile(SOURCE, "box.py", "exec"), scope)
    lines = {edit.function: edit.first_line for edit in find_edits(SOURCE)}
    box = scope["Box"]
    assert lines["Box.first"] == box.__dict__["first"].fget.__code__.co_firstlineno
    assert lines["clamp"] == scope["clamp"].__code__.co_firstlineno  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["textwrap.py", "heapq.py", "fractions.py"])
def test_every_edit_of_real_code_compiles_and_changes_it(module: str) -> None:
    source = (
        Path(sys.base_prefix) / f"lib/python{sys.version_info.major}.{sys.version_info.minor}" / module
    ).read_text()
    edits = find_edits(source)
    assert len(edits) > 30
    assert len({edit.key for edit in edits}) == len(edits)
    for edit in edits[::29]:
        changed = apply_edit(source, edit)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), edit
        assert changed.encode()[: edit.start] == source.encode()[: edit.start]
