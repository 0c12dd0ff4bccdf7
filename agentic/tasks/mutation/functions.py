"""Building a function from a shape, and calling it: pure except that generated code is executed.

Only sources made from this package's own shapes are executed here, in this process; what a policy wrote is executed in
a sandbox by the task's own checker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentic.tasks.mutation.arguments import Argument
from agentic.tasks.mutation.forms import PHRASES, Kind
from agentic.tasks.mutation.templates import Template


@dataclass(frozen=True)
class Hole:
    """A documented place: the docstring's phrase determines the form there."""

    line: int
    kind: Kind
    form: str
    """What the file says."""
    right: str
    """What the docstring calls for."""

    @property
    def phrase(self) -> str:
        return PHRASES[self.kind][self.right]

    @property
    def is_wrong(self) -> bool:
        return self.form != self.right


@dataclass(frozen=True)
class Filling:
    """The words that turn a shape into one function; the forms are given apart, since mutants share the words."""

    template: Template
    noun: str
    decoy: tuple[str, str]
    right: Mapping[str, str]
    """Mark (`@h`, `@g`) → right form."""

    def kind_of(self, mark: str) -> Kind:
        kind = self.template.kind if mark == "@h" else self.template.second
        if kind is None:
            raise KeyError(mark)
        return kind

    def name(self) -> str:
        return self._fill(self.template.name)

    def source(self, forms: Mapping[str, str]) -> str:
        """The function's text with the given forms at its marks."""
        phrases = {_PHRASE_MARKS[mark]: PHRASES[self.kind_of(mark)][form] for mark, form in self.right.items()}
        doc = self._fill(_replace(self.template.doc, phrases))
        head = [f"def {self.name()}({self._fill(self.template.parameters)}):", f'    """{doc}"""']
        return "\n".join([*head, *(f"    {self._fill(_replace(line, forms))}" for line in self.template.body)]) + "\n"

    def line_of(self, mark: str) -> int:
        return 3 + next(index for index, line in enumerate(self.template.body) if mark in line)

    def _fill(self, text: str) -> str:
        words, code = self.decoy
        filled = _replace(text, {"@w": words, "@d": code}).replace("@n", self.noun)
        return filled[0].upper() + filled[1:] if text == self.template.doc else filled


_PHRASE_MARKS = {"@h": "@p", "@g": "@q"}


def _replace(text: str, values: Mapping[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def call_function(source: str, name: str, calls: Sequence[tuple[Argument, ...]]) -> list[str]:
    """The `repr` of each call's result, or the exception's name."""
    scope: dict[str, object] = {}
    exec(compile(source, "mod.py", "exec"), scope)
    function = scope[name]
    if not callable(function):
        raise TypeError(name)
    return [_call(function, arguments) for arguments in calls]


def _call(function: object, arguments: tuple[Argument, ...]) -> str:
    try:
        return repr(function(*arguments))  # type: ignore[operator]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return type(error).__name__
