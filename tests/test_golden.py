"""The golden fixture itself, in a test session of its own."""

import json
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import json
from pathlib import Path

HERE = Path(__file__).parent

def test_text(golden):
    golden(HERE / "made.txt", "new")

def test_meaning(golden):
    golden(HERE / "made.json", '{"a":1}', parse=json.loads)

def test_other():
    raise SystemExit("must not run while golden files are written")
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(test_suite=SUITE)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester


def test_a_missing_golden_file_fails_and_is_not_written(suite: pytest.Pytester) -> None:
    suite.runpytest_inprocess("-k", "not other").assert_outcomes(failed=2)
    assert not (suite.path / "made.txt").exists()


def test_writing_runs_only_golden_tests_and_then_they_pass(suite: pytest.Pytester) -> None:
    suite.runpytest_inprocess("--write-golden").assert_outcomes(passed=2)
    suite.runpytest_inprocess("-k", "not other").assert_outcomes(passed=2)


def test_a_difference_fails_by_text_or_by_meaning_as_asked(suite: pytest.Pytester) -> None:
    (suite.path / "made.txt").write_text("old")
    (suite.path / "made.json").write_text(json.dumps({"a": 1}, indent=4))
    outcome = suite.runpytest_inprocess("-k", "not other")
    outcome.assert_outcomes(failed=1, passed=1)
    outcome.stdout.fnmatch_lines(["*made.txt differs: run make golden*"])
