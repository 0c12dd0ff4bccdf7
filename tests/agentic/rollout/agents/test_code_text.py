"""What a model writes as code and what is run."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.rollout.agents.code_text import extract_code, print_last_expression


@pytest.mark.parametrize("word", ["py", "python", "python3", "Python", ""])
def test_the_first_python_block_counts(word: str) -> None:
    text = f"I compute.\n```bash\nls\n```\nthen\n```{word}\nx = 1\nx + 1\n```\nand\n```py\n7\n```\n"
    assert extract_code(text) == "x = 1\nx + 1\n"


def test_text_without_a_fence_is_code() -> None:
    assert extract_code("1 + 1") == "1 + 1"


def test_a_fence_that_is_not_closed_reaches_to_the_end() -> None:
    assert extract_code("```py\nprint(1)") == "print(1)"


def test_backticks_within_code_do_not_end_it() -> None:
    assert extract_code('```python\ns = "```"\ns\n```') == 's = "```"\ns\n'


@pytest.mark.parametrize(
    ("code", "run"),
    [
        ("1 + 1", "print((1 + 1))"),
        ("import sympy\nsympy.sqrt(3)  # exact", "import sympy\nprint((sympy.sqrt(3)))  # exact"),
        ("x = 1; x", "x = 1; print((x))"),
        ("1, 2", "print((1, 2))"),
        ("(1 +\n 2)", "print(((1 +\n 2)))"),
        ("é = 'ü'; é", "é = 'ü'; print((é))"),
        ("f(\n  1,\n)\n", "print((f(\n  1,\n)))\n"),
    ],
)
def test_an_expression_that_comes_last_is_printed(code: str, run: str) -> None:
    assert print_last_expression(code) == run


@pytest.mark.parametrize(
    "code",
    ["x = 1", "x += 1", "print(1)", "def f():\n    1", "for x in y:\n    x", "", "# nothing", "1 +", "del x", "\0"],
)
def test_everything_else_stays_as_it_is(code: str) -> None:
    assert print_last_expression(code) == code


values = st.recursive(
    st.sampled_from(["1", "x", "'é'", "[1,\n 2]", "f(x)", "a.b", "{'k': 1}", "not x"]),
    lambda inner: st.one_of(
        inner.map(lambda one: f"({one})"), st.tuples(inner, inner).map(lambda two: f"({two[0]}) + ({two[1]})")
    ),
    max_leaves=5,
)


@given(before=st.sampled_from(["", "y = 'ß'\n", "if y:\n    z\n", "y = 1; "]), value=values)
def test_what_is_printed_is_the_same_value(before: str, value: str) -> None:
    changed = ast.parse(print_last_expression(before + value)).body
    assert ast.dump(changed[-1]) == ast.dump(ast.parse(f"print(({value}))").body[0])
    assert [ast.dump(one) for one in changed[:-1]] == [ast.dump(one) for one in ast.parse(before).body]
