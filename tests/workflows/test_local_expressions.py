"""`when`, `depends` and the retry expression mean what Argo says they mean, and nothing else is accepted."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.errors import DocumentError
from workflows.local.expressions import RETRY, WHEN, Parser, is_due, is_satisfied, should_retry, task_names
from workflows.pipeline import RETRY_WHEN, STEPS, runs_from


def last(exit_code: int = 1, status: str = "Failed", message: str = "") -> dict[str, str]:
    return {"exitCode": str(exit_code), "status": status, "message": message, "duration": "1"}


@pytest.mark.parametrize("code", [64, 65, 75, 137, 143])
def test_exit_codes_that_may_pass_are_retried(code: int) -> None:
    assert should_retry(RETRY_WHEN, last(code))


@pytest.mark.parametrize("code", [-1, 1, 2, 78, 130])
def test_other_exit_codes_are_final(code: int) -> None:
    assert not should_retry(RETRY_WHEN, last(code))


def test_a_lost_pod_is_retried_by_its_status_or_its_message() -> None:
    assert should_retry(RETRY_WHEN, last(-1, status="Error"))
    assert should_retry(RETRY_WHEN, last(1, message="The node was low on resource: Evicted"))


@pytest.mark.parametrize(
    ("retries", "seconds", "again"), [(0, 1, True), (1, 1, False), (1, 3601, True), (3, 3600, False)]
)
def test_a_container_over_its_memory_gets_one_more_try_and_further_ones_while_it_gets_far(
    retries: int, seconds: float, again: bool
) -> None:
    killed = last(137, message="main: OOMKilled (exit code 137)")
    assert should_retry(RETRY_WHEN, {**killed, "retries": str(retries), "duration": str(seconds)}) is again


@pytest.mark.parametrize(
    ("when", "due"),
    [
        ("'train' == 'train'", True),
        ("\"train\" != 'train'", False),
        ("yes == yes && !(yes == no)", True),
        ("2 < 10 || yes == no", True),
        ("(yes == no || yes == yes) && 1 == 2", False),
    ],
)
def test_when_compares_words_and_numbers(when: str, due: bool) -> None:
    assert is_due(when) is due


def test_start_from_runs_a_step_and_all_after_it() -> None:
    for start in STEPS:
        running = []
        for step in STEPS:
            when = runs_from(step)
            if when is None or is_due(when.replace("{{workflow.parameters.start_from}}", start)):
                running.append(step)
        assert tuple(running) == STEPS[STEPS.index(start) :]


def test_a_plain_name_is_satisfied_by_success_and_by_skipping() -> None:
    for status, satisfied in [("Succeeded", True), ("Skipped", True), ("Failed", False), ("Omitted", False)]:
        assert is_satisfied("build-images", {"build-images": status}) is satisfied


def test_depends_combines_results() -> None:
    statuses = {"a": "Failed", "b-c": "Succeeded"}
    assert is_satisfied("(a.Failed || a.Errored) && b-c.Succeeded", statuses)
    assert not is_satisfied("a && b-c", statuses)
    assert task_names("(a.Failed || a.Errored) && b-c.Succeeded", ["a", "b-c"]) == {"a", "b-c"}


@pytest.mark.parametrize(
    ("expression", "culprit"),
    [
        ("asString(lastRetry.exitCode) > 1", "asString"),
        ("lastRetry.node == 'x'", "lastRetry.node"),
        ("__import__('os').system('true')", "__import__"),
        ("lastRetry.status contains 'x'", "contains"),
        ("lastRetry.status == ", "an operand"),
        ("(lastRetry.status == 'x'", ")"),
        ("lastRetry.status ?? 'x'", "??"),
    ],
)
def test_a_retry_expression_is_refused_by_what_is_unknown_in_it(expression: str, culprit: str) -> None:
    with pytest.raises(DocumentError) as error:
        Parser(expression, RETRY).parse()
    assert culprit in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("when", ["download-data == train", "x in ('a', 'b')", "x matches 'y'", "f(x)"])
def test_a_when_that_is_not_understood_is_refused(when: str) -> None:
    with pytest.raises(DocumentError):
        Parser(when, WHEN).parse()


def test_depends_on_a_task_that_is_not_there_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"'b\.Succeeded' is not known"):
        task_names("a && b.Succeeded", ["a"])


@given(st.text(alphabet="ab'\"()[]!&|=<>, {}.01asIntlastRetry", max_size=40))
def test_any_text_is_either_parsed_or_refused(text: str) -> None:
    for dialect in (WHEN, RETRY):
        with suppress(DocumentError):
            Parser(text, dialect).parse()
