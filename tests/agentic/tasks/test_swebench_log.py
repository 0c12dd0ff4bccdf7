"""Which lines of a SWE-bench log are read."""

from agentic.tasks.swebench_grader import without_late_lines

RUN = ">>>>> Start Test Output\nFAILED a\n=== 1 failed, 2 passed in 0.12s ===\n"
MARKS = "+ : '>>>>> End Test Output'\n>>>>> Test Exit Code: 1\n"


def test_lines_that_are_printed_after_pytests_last_line_are_not_read() -> None:
    assert "PASSED a" not in without_late_lines(f"{RUN}PASSED a\n{MARKS}")


def test_what_pytest_and_the_harness_print_is_read() -> None:
    assert without_late_lines(RUN + MARKS).splitlines() == [*RUN.splitlines(), *MARKS.splitlines()]


def test_a_log_of_another_runner_is_read_whole() -> None:
    log = "test_a (tests.A) ... ok\nRan 1 test in 0.001s\n\nOK\n"
    assert without_late_lines(log) == log
