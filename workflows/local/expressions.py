"""The three small languages of a Workflow: `when`, `depends` and the retry expression.

One grammar, three dialects. A dialect says which names, functions and operators exist; whatever else appears is refused
by name when the document is read, before anything starts. Nothing here evaluates Python.

- `when` is govaluate's: after substitution, bare words are strings (so a dash needs quotes, as in Argo itself).
- `depends` combines task results; a plain name means succeeded, skipped or daemoned.
- the retry expression is expr-lang's: `lastRetry.*`, `retries`, `asInt`, `asFloat`, `in [...]`, `matches`.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from workflows.errors import DocumentError

type Value = str | float | int | bool | list["Value"]

TASK_RESULTS = ("Succeeded", "Failed", "Errored", "Skipped", "Omitted", "Daemoned", "AnySucceeded", "AllFailed")
"""What may follow a task's name in `depends`."""

LAST_RETRY = ("exitCode", "status", "message", "duration")
"""Fields of `lastRetry`."""


@dataclass(frozen=True)
class Literal:
    """A quoted string or a number."""

    value: str | float | int


@dataclass(frozen=True)
class Name:
    """A bare word, dotted or not."""

    text: str


@dataclass(frozen=True)
class Apply:
    """A function or operator with its operands; `list` builds a list."""

    operation: str
    operands: tuple["Expression", ...]


type Expression = Literal | Name | Apply

COMPARISONS: Mapping[str, Callable[[Value, Value], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda item, items: isinstance(items, list) and item in items,
    "matches": lambda text, pattern: re.search(str(pattern), str(text)) is not None,
}
"""Operators between two operands that give a truth value."""


@dataclass(frozen=True)
class Dialect:
    """What may appear in one of the languages."""

    field: str
    word: str
    operators: frozenset[str]
    functions: Mapping[str, Callable[[Value], Value]]
    is_name: Callable[[str], bool]


def as_int(value: Value) -> Value:
    """expr-lang's `asInt`; a missing exit code arrives as -1."""
    return int(str(value))


def as_float(value: Value) -> Value:
    """expr-lang's `asFloat`."""
    return float(str(value))


WHEN = Dialect(
    "when",
    r"\{\{[^{}]*\}\}|[A-Za-z_]\w*",
    frozenset(["==", "!=", "<", "<=", ">", ">=", "&&", "||", "!"]),
    {},
    lambda text: True,
)
RETRY = Dialect(
    "retryStrategy.expression",
    r"[A-Za-z_][\w.]*",
    frozenset([*COMPARISONS, "&&", "||", "!", "list"]),
    {"asInt": as_int, "asFloat": as_float},
    lambda text: text in {"retries", *(f"lastRetry.{field}" for field in LAST_RETRY)},
)


def depends_dialect(tasks: Collection[str]) -> Dialect:
    """The language of `depends` among these tasks."""
    names = {*tasks, *(f"{task}.{result}" for task in tasks for result in TASK_RESULTS)}
    return Dialect("depends", r"[A-Za-z_][\w.-]*", frozenset(["&&", "||", "!"]), {}, names.__contains__)


class Parser:
    """Recursive descent over one text; every refusal quotes the text and the culprit."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text
        self.dialect = dialect
        self.tokens = list(self._tokenize())
        self.position = 0

    def parse(self) -> Expression:
        """The whole text as one expression."""
        expression = self._binary("||", lambda: self._binary("&&", self._unary))
        if self.position < len(self.tokens):
            self._refuse(f"'{self.tokens[self.position]}' is not expected there")
        return expression

    def _tokenize(self) -> Iterator[str]:
        token = re.compile(
            r"\s*('[^']*'|\"[^\"]*\"|" + self.dialect.word + r"|-?\d+(?:\.\d+)?|&&|\|\||[=!<>]=|[<>!()\[\],])\s*"
        )
        position = 0
        while position < len(self.text):
            match = token.match(self.text, position)
            if match is None:
                self._refuse(f"cannot read from '{self.text[position : position + 20]}'")
            yield match[1]
            position = match.end()

    def _refuse(self, reason: str) -> NoReturn:
        raise DocumentError(f'{self.dialect.field} "{self.text}": {reason}; the local runner refuses it')

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if not token or (wanted and token != wanted):
            self._refuse(f"'{wanted or 'an operand'}' is missing")
        self.position += 1
        return token

    def _apply(self, operation: str, *operands: Expression) -> Expression:
        if operation not in self.dialect.operators and operation not in self.dialect.functions:
            self._refuse(f"'{operation}' is not known")
        return Apply(operation, operands)

    def _binary(self, symbol: str, operand: Callable[[], Expression]) -> Expression:
        left = operand()
        while self._peek() == symbol:
            self._take()
            left = self._apply(symbol, left, operand())
        return left

    def _unary(self) -> Expression:
        if self._peek() == "!":
            self._take()
            return self._apply("!", self._unary())
        left = self._operand()
        if self._peek() in COMPARISONS:
            return self._apply(self._take(), left, self._operand())
        return left

    def _operand(self) -> Expression:
        token = self._take()
        if token == "(":
            inner = self._binary("||", lambda: self._binary("&&", self._unary))
            self._take(")")
            return inner
        if token == "[":
            return self._apply("list", *self._sequence("]"))
        if token[0] in "'\"":
            return Literal(token[1:-1])
        if re.fullmatch(r"-?\d+(\.\d+)?", token):
            return Literal(float(token) if "." in token else int(token))
        if self._peek() == "(":
            self._take()
            return self._apply(token, *self._sequence(")"))
        if not self.dialect.is_name(token) or not re.match(self.dialect.word, token):
            self._refuse(f"'{token}' is not known")
        return Name(token)

    def _sequence(self, closing: str) -> list[Expression]:
        items: list[Expression] = []
        while self._peek() != closing:
            if items:
                self._take(",")
            items.append(self._operand())
        self._take(closing)
        return items


def names_in(expression: Expression) -> Iterator[str]:
    """Every bare word of the expression."""
    if isinstance(expression, Name):
        yield expression.text
    elif isinstance(expression, Apply):
        for operand in expression.operands:
            yield from names_in(operand)


def evaluate(expression: Expression, dialect: Dialect, lookup: Callable[[str], Value]) -> Value:
    """The value of a parsed expression; `lookup` gives the value of a name."""
    match expression:
        case Literal(value):
            return value
        case Name(text):
            return lookup(text)
        case Apply("&&", (left, right)):
            return bool(evaluate(left, dialect, lookup)) and bool(evaluate(right, dialect, lookup))
        case Apply("||", (left, right)):
            return bool(evaluate(left, dialect, lookup)) or bool(evaluate(right, dialect, lookup))
    values = [evaluate(operand, dialect, lookup) for operand in expression.operands]
    if expression.operation == "!":
        return not values[0]
    if expression.operation == "list":
        return values
    if expression.operation in COMPARISONS:
        return COMPARISONS[expression.operation](values[0], values[1])
    return dialect.functions[expression.operation](values[0])


def is_due(when: str) -> bool:
    """Whether a substituted `when` holds."""

    def bare_word(text: str) -> Value:
        return text == "true" if text in {"true", "false"} else text

    return bool(evaluate(Parser(when, WHEN).parse(), WHEN, bare_word))


def should_retry(expression: str, last: Mapping[str, str]) -> bool:
    """Whether the retry expression accepts the last attempt; `last` has its fields, and `retries` before it."""
    lookup = lambda name: last[name.removeprefix("lastRetry.")]  # noqa: E731
    return bool(evaluate(Parser(expression, RETRY).parse(), RETRY, lookup))


def is_satisfied(depends: str, statuses: Mapping[str, str]) -> bool:
    """Whether `depends` holds, given the final status of each task that it names."""

    def result(name: str) -> Value:
        task, _, wanted = name.partition(".")
        status = statuses[task]
        if not wanted:
            return status in {"Succeeded", "Skipped", "Daemoned"}
        return status == {"AnySucceeded": "Succeeded", "AllFailed": "Failed"}.get(wanted, wanted)

    dialect = depends_dialect(statuses)
    return bool(evaluate(Parser(depends, dialect).parse(), dialect, result))


def task_names(depends: str, tasks: Collection[str]) -> set[str]:
    """The tasks that a `depends` waits for."""
    return {name.partition(".")[0] for name in names_in(Parser(depends, depends_dialect(tasks)).parse())}
