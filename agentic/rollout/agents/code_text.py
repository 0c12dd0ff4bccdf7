"""What a model writes as code → what is run. Pure.

Models wrap code in a fence or they don't, and end it with an expression as in a notebook. The first Python block counts
(a fence with `py`, `python` or no word), else the text as it is; an expression that comes last is printed. Whether it
is one is read from the syntax tree, so assignments, calls of `print` and code that does not parse stay as they are.
"""

import ast
import re
from typing import Any

CODE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "code_interpreter",
        "description": "A tool for executing Python code. The value of a last expression is printed.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The Python code to run."}},
            "required": ["code"],
        },
    },
}
"""The tool as a model is told of it."""
NO_CODE = "Error: code_interpreter needs an argument code that is a string"

_FENCED = re.compile(
    r"^[ \t]*(?P<fence>`{3,})[ \t]*(?P<word>[\w+-]*)[^\n]*\n(?P<code>.*?)(?:^[ \t]*(?P=fence)`*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_PYTHON = frozenset({"", "py", "python", "python3"})


def extract_code(text: str) -> str:
    """The code of the first Python block, or the text when there is none."""
    for found in _FENCED.finditer(text):
        if found["word"].lower() in _PYTHON:
            return found["code"]
    return text


def print_last_expression(code: str) -> str:
    """The code, with its last statement printed if that is an expression; line numbers stay as they were."""
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # whoever runs it will see why
    last = statements[-1] if statements else None
    if not isinstance(last, ast.Expr) or _prints(last.value):
        return code
    lines = code.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: last.lineno - 1])) + last.col_offset
    end = sum(map(len, lines[: (last.end_lineno or last.lineno) - 1])) + (last.end_col_offset or 0)
    source = code.encode()
    # Two pairs: a bare tuple is one value, and a starred one is allowed.
    return (source[:start] + b"print((" + source[start:end] + b"))" + source[end:]).decode()


def shown(stdout: str, stderr: str, note: str) -> str:
    """What a model reads of a run: its output, then its errors, then what a limit did."""
    return "\n".join(part.rstrip("\n") for part in (stdout, stderr, note) if part.strip()) or "(no output)"


def _prints(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"
