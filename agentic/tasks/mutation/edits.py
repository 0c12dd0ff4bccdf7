"""Small mistakes for real code: every place of a source where one fits, and what to write there instead.

Pure: text in, edits out. The forms of the generator (bounds, operators, folds, indices, slices, swapped arguments,
missing guards) are found by the syntax tree instead of by a template's marks; conditions, numbers and truth values are
added, since real functions have many. Only what lies inside a function is edited, and never a docstring. An edit that
would not compile is not among them.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from agentic.tasks.mutation.forms import PHRASES, Kind, wrong_forms

type Function = ast.FunctionDef | ast.AsyncFunctionDef

COMPARISONS = frozenset(form.strip() for form in PHRASES[Kind.BOUNDS])
ARITHMETIC = frozenset(form.strip() for form in PHRASES[Kind.OPERATORS])
FOLDS = frozenset(form.rstrip("(") for form in PHRASES[Kind.FOLD])
LARGEST_NUMBER = 1000
"""Numbers beyond are masks, sizes and code points, where one more is no typical mistake."""


@dataclass(frozen=True)
class Edit:
    """One replacement in a source, by byte offsets."""

    function: str
    """Dotted name within the module."""
    first_line: int
    """Of the function, decorators included, as its code object has it."""
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    @property
    def key(self) -> str:
        return f"{self.function}:{self.start}:{self.kind}:{self.new}"


def find_edits(source: str) -> list[Edit]:
    """All edits, in the order of the source."""
    text = _Text(source)
    found = [edit for name, function in _functions(ast.parse(source)) for edit in _in_function(text, name, function)]
    unique = {(edit.start, edit.end, edit.new): edit for edit in found if edit.old != edit.new}
    return sorted(unique.values(), key=lambda edit: (edit.start, edit.new))


def apply_edit(source: str, edit: Edit) -> str:
    data = source.encode()
    return (data[: edit.start] + edit.new.encode() + data[edit.end :]).decode()


class _Text:
    """A source addressed as the syntax tree does it: line, and byte in the line."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr) -> int:
        return self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def lines(self, first: int, last: int) -> tuple[int, int]:
        """First byte, and byte after the last, of whole lines."""
        return self._starts[first - 1], self._starts[last]

    def of(self, node: ast.expr) -> str:
        return self.between(self.start(node), self.end(node))

    def between(self, start: int, end: int) -> str:
        return self.data[start:end].decode()


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)


def _in_function(text: _Text, name: str, function: Function) -> Iterator[Edit]:
    first_line = min([function.lineno, *(node.lineno for node in function.decorator_list)])
    own_start, own_end = text.lines(first_line, function.end_lineno or 0)
    for node in (inner for statement in function.body for inner in _own(statement)):
        for kind, start, end, new in _places(text, node):
            line = text.data.count(b"\n", 0, start) + 1
            changed = text.data[own_start:start] + new.encode() + text.data[end:own_end]
            if _parses(changed):
                yield Edit(name, first_line, line, kind, start, end, text.between(start, end), new)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is below it, without inner functions and classes, whose code objects are their own, and without
    literal text."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.JoinedStr):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own(child)


type _Place = tuple[str, int, int, str]
"""Kind, first byte, byte after the last, what to write."""


def _places(text: _Text, node: ast.AST) -> Iterator[_Place]:
    match node:
        case ast.Compare(left=left, comparators=[right]):
            yield from _operator(text, left, right, Kind.BOUNDS, COMPARISONS)
        case ast.BinOp(left=left, right=right) if not _is_text(left):
            yield from _operator(text, left, right, Kind.OPERATORS, ARITHMETIC)
        case ast.BoolOp(values=[left, right]):
            start, end = text.end(left), text.start(right)
            if (word := text.between(start, end).strip()) in ("and", "or"):
                yield "condition", start, end, " or " if word == "and" else " and "
        case ast.Call():
            yield from _call(text, node)
        case ast.Subscript(value=value, slice=index):
            yield from _subscript(text, value, index)
        case ast.If(test=test, body=[ast.Return() | ast.Raise() | ast.Continue() | ast.Break()], orelse=[]):
            yield Kind.GUARD, text.start(test), text.end(test), "False"
        case _:
            yield from _word(text, node)


def _word(text: _Text, node: ast.AST) -> Iterator[_Place]:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "condition", text.start(node), text.start(operand), ""
        case ast.Constant(value=bool(value)):
            yield "truth", text.start(node), text.end(node), str(not value)
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and value <= LARGEST_NUMBER:
            yield "number", text.start(node), text.end(node), str(value + 1)


def _operator(text: _Text, left: ast.expr, right: ast.expr, kind: Kind, known: frozenset[str]) -> Iterator[_Place]:
    start, end = text.end(left), text.start(right)
    word = text.between(start, end).strip()
    if word in known:
        for form in wrong_forms(kind, f" {word} "):
            yield kind, start, end, form


def _call(text: _Text, node: ast.Call) -> Iterator[_Place]:
    if isinstance(node.func, ast.Name) and node.func.id in FOLDS and len(node.args) == 1:
        for form in wrong_forms(Kind.FOLD, f"{node.func.id}("):
            yield Kind.FOLD, text.start(node.func), text.end(node.func), form.rstrip("(")
    if len(node.args) > 1 and not any(isinstance(argument, ast.Starred) for argument in node.args[:2]):
        first, second = node.args[:2]
        between = text.between(text.end(first), text.start(second))
        yield Kind.SWAP, text.start(first), text.end(second), f"{text.of(second)}{between}{text.of(first)}"


def _subscript(text: _Text, value: ast.expr, index: ast.expr) -> Iterator[_Place]:
    start, end = text.start(index), text.end(index)
    if f"[{text.between(start, end)}]" in PHRASES[Kind.INDEX]:
        for form in wrong_forms(Kind.INDEX, f"[{text.between(start, end)}]"):
            yield Kind.INDEX, start, end, form[1:-1]
    elif isinstance(index, ast.Slice) and index.step is None and (index.lower is None) != (index.upper is None):
        bound = index.lower or index.upper
        if bound is not None and re.fullmatch(r"\S+", text.of(bound)):
            yield Kind.SLICE, start, end, f":{text.of(bound)}" if index.lower else f"{text.of(bound)}:"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _parses(function: bytes) -> bool:
    """A function's lines alone, since parsing the module for each edit would take minutes."""
    block = b"if True:\n" if function[:1].isspace() else b""
    try:
        ast.parse(block + function)
    except (SyntaxError, ValueError):
        return False
    return True
