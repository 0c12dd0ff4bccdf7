"""Which answers are right."""

import asyncio
import time
from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.tasks.problems import plain
from agentic.tasks.problems.answers import AnswerChecker
from agentic.tasks.problems.plain import boxed, is_same, plain_number


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{2}", "2"),
        (r"\boxed{1} no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{ x_{1} }", "x_{1}"),
        (r"\boxed{1", None),
        ("2", None),
        (r"\boxed{" + "1" * 500 + "}", None),
    ],
)
def test_the_last_box_holds_the_answer(text: str, answer: str | None) -> None:
    assert boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,905", 1905),
        ("$-3$", -3),
        ("0.50", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac12", Fraction(1, 2)),
        ("1/0", None),
        ("1,2", None),
        ("x", None),
        ("9" * 200, None),
    ],
)
def test_plain_numbers_have_a_value(text: str, value: Fraction | int | None) -> None:
    assert plain_number(text) == value


@given(st.fractions(max_denominator=10**6), st.integers(1, 9))
def test_a_number_is_the_same_however_its_fraction_is_written(value: Fraction, times: int) -> None:
    assert is_same(f"{value.numerator * times}/{value.denominator * times}", str(value))
    assert not is_same(str(value + 1), str(value))


ENDLESS = ("9^{9^{9^9}}", r"2\sqrt{3}")
"""An answer, and what it is compared with, which takes as long as it is let."""


@pytest.fixture
async def checker() -> AsyncIterator[AnswerChecker]:
    checker = AnswerChecker()
    yield checker
    await checker.close()


async def test_algebra_is_compared_by_meaning(checker: AnswerChecker) -> None:
    assert await checker.is_correct(r"\sqrt{12}", r"2\sqrt{3}")
    assert await checker.is_correct("(x+1)^2", "x^2+2x+1")
    assert not await checker.is_correct("(x+1)^2", "x^2+1")
    assert not await checker.is_correct(r"\sqrt{13}", r"2\sqrt{3}")


async def test_no_answer_and_an_endless_one_are_wrong(checker: AnswerChecker) -> None:
    assert not await checker.is_correct(None, "1")
    assert not await checker.is_correct("", "1")
    assert not await checker.is_correct("1" * 401, "1")


@pytest.mark.timeout(180)
async def test_an_answer_that_takes_algebra_for_ever_is_wrong_and_the_next_is_compared() -> None:
    checker = AnswerChecker(answer_seconds=1.0)
    assert await checker.is_correct("x+1", "1+x")
    started = time.monotonic()
    assert not await checker.is_correct(*ENDLESS)
    assert time.monotonic() - started < 8
    assert await checker.is_correct("x+2", "2+x")
    await checker.close()


@pytest.mark.timeout(180)
async def test_an_endless_answer_holds_up_no_other() -> None:
    checker = AnswerChecker(answer_seconds=40.0, at_once=2)
    assert all(await asyncio.gather(checker.is_correct("x+1", "1+x"), checker.is_correct("x+3", "3+x")))
    endless = asyncio.create_task(checker.is_correct(*ENDLESS))
    await asyncio.sleep(0.2)
    assert await checker.is_correct("x+2", "2+x")
    assert not endless.done()
    await checker.close()
    assert not await endless


@pytest.mark.parametrize(("reply", "reward"), [(r"It is \boxed{42}.", "1"), (r"\boxed{41}", "0"), ("42", "0")])
def test_the_checker_in_a_task_writes_the_reward(tmp_path: Path, reply: str, reward: str) -> None:
    (tmp_path / "answer.txt").write_text(reply)
    (tmp_path / "expected.txt").write_text("42\n")
    code = plain.main(str(tmp_path / "answer.txt"), str(tmp_path / "expected.txt"), str(tmp_path / "logs"))
    assert (tmp_path / "logs/reward.txt").read_text().strip() == reward
    assert code == 1 - int(reward)


def test_the_checker_imports_nothing_of_ours() -> None:
    assert "agentic" not in Path(plain.__file__).read_text().split('"""', 2)[2]


def test_no_answer_at_all_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "expected.txt").write_text("42\n")
    assert plain.main(str(tmp_path / "none"), str(tmp_path / "expected.txt"), str(tmp_path)) == 1
