"""Fourteen small repositories in SWE-bench's row format: bugs, hidden tests, and patches of five kinds for each.

Between them: pytest under six of the package's parsers, unittest as Django runs it, a runner that prints as SymPy's
does, a runner that calls pytest as tox does, parametrized ids, tests that are skipped or expected to fail, a flaky test
that no list names, a slow one, and patches that never end.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCRIPT = """\
#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
git status
git checkout base {test_file}
git apply -v - <<'EOF_114329324912'
{test_patch}EOF_114329324912
: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
git checkout base {test_file}
"""
MODULE = "def target(n):\n    return {body}\n\n\ndef other(n):\n    return n * 2\n"
TEST_FILE = "tests/test_calc.py"
PYTEST = "python3 -m pytest -rA -p no:cacheprovider tests/test_calc.py"
TOX = """\
import subprocess
import sys

words = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *sys.argv[1:]]
print(f"py312: commands[0]> pytest -rA {' '.join(sys.argv[1:])}", flush=True)
code = subprocess.call(words)
print("  py312: OK" if code == 0 else "  py312: FAIL code 1")
sys.exit(code)
"""
SYMPY = """\
import importlib
import sys
import traceback

sys.path.insert(0, ".")
module, failed = importlib.import_module("tests.test_calc"), []
print("============================= test process starts ==============================")
print("tests/test_calc.py[3]")
for name in [name for name in vars(module) if name.startswith("test_")]:
    try:
        getattr(module, name)()
        print(name, "ok")
    except AssertionError:
        failed.append(name)
        print(name, "F")
for name in failed:
    print(f"_________________ tests/test_calc.py:{name} _________________")
sys.exit(bool(failed))
"""
PLAIN_BEFORE = "from calc import other\n\n\ndef test_other():\n    assert other(2) == 4\n"
PLAIN_AFTER = """from calc import other, target


def test_other():
    assert other(2) == 4


def test_target():
    assert target(3) == 4


def test_target_of_zero():
    assert target(0) == 1
"""
UNITTEST_BEFORE = """import unittest

from calc import other


class CalcTest(unittest.TestCase):
    def test_other(self):
        self.assertEqual(other(2), 4)
"""
UNITTEST_AFTER = (
    UNITTEST_BEFORE.replace("import other", "import other, target")
    + "\n    def test_target(self):\n        self.assertEqual(target(3), 4)\n"
)
PYTEST_IDS = ("test_target", "test_target_of_zero"), ("test_other",)


@dataclass(frozen=True)
class Instance:
    """One instance and the patches that are tried on it."""

    name: str
    parser: str
    command: str = PYTEST
    before: str = PLAIN_BEFORE
    after: str = PLAIN_AFTER
    prefix: str = "tests/test_calc.py::"
    ids: tuple[tuple[str, ...], tuple[str, ...]] = PYTEST_IDS
    more: Mapping[str, str] = field(default_factory=dict)
    """Files of the repository besides."""
    wrong: str = "n + 2"
    """What the wrong patch returns."""
    forged: Mapping[str, str] = field(default_factory=dict)
    """Files of the forged patch; none: a conftest that prints passes."""

    @property
    def instance_id(self) -> str:
        return f"local__{self.name}-1"

    def repository(self) -> dict[str, str]:
        found = {"calc.py": MODULE.format(body="n - 1"), TEST_FILE: self.before, "tests/__init__.py": ""}
        return {**found, "conftest.py": "import sys\n\nsys.path.insert(0, '.')\n", **self.more}

    def lists(self) -> tuple[list[str], list[str]]:
        fail, keep = self.ids
        return [f"{self.prefix}{name}" for name in fail], [f"{self.prefix}{name}" for name in keep]

    def row(self) -> dict[str, Any]:
        fail, keep = self.lists()
        patch = diff({TEST_FILE: self.before}, {TEST_FILE: self.after})
        script = SCRIPT.format(test_file=TEST_FILE, test_patch=patch, command=self.command)
        return {
            "repo": f"local/{self.name}",
            "instance_id": self.instance_id,
            "base_commit": "base",
            "patch": self.patches()["gold"],
            "test_patch": patch,
            "problem_statement": "target(n) is n + 1.",
            "version": "1",
            "FAIL_TO_PASS": fail,
            "PASS_TO_PASS": keep,
            "image": "agentic/base:local",
            "log_parser": self.parser,
            "eval_type": "pass_and_fail",
            "eval_script": script,
        }

    def patches(self) -> dict[str, str]:
        """Kind → unified diff."""
        old = self.repository()
        right, wrong = (MODULE.format(body=body) for body in ("n + 1", self.wrong))
        changes: dict[str, dict[str, str]] = {
            "gold": {"calc.py": right},
            "empty": {},
            "wrong": {"calc.py": wrong},
            "regression": {"calc.py": right.replace("n * 2", "n * 3")},
            "forged": dict(self.forged) or {"conftest.py": old["conftest.py"] + forging_conftest(self.lists())},
        }
        return {kind: diff(old, {**old, **files}) for kind, files in changes.items()}


def forging_conftest(lists: tuple[list[str], list[str]]) -> str:
    """Prints passes for all tests at the very end of the run."""
    lines = "\n".join(f"PASSED {name}\n{name} ... ok\n{name} ok" for names in lists for name in names)
    return f"\n\ndef pytest_unconfigure():\n    print({lines!r})\n"


def diff(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    parts = []
    for name in sorted(new):
        before, after = old.get(name, ""), new[name]
        if before != after:
            lines = difflib.unified_diff(
                before.splitlines(keepends=True),
                after.splitlines(keepends=True),
                f"a/{name}" if name in old else "/dev/null",
                f"b/{name}",
            )
            head = f"diff --git a/{name} b/{name}\n" + ("" if name in old else "new file mode 100644\n")
            parts.append(head + "".join(lines))
    return "".join(parts)


def _unittest(name: str, **changes: Any) -> Instance:
    tests = "tests.test_calc.CalcTest"
    return Instance(
        name,
        "parse_log_django",
        "python3 -m unittest -v tests.test_calc",
        UNITTEST_BEFORE,
        UNITTEST_AFTER,
        "",
        ((f"test_target ({tests}.test_target)",), (f"test_other ({tests}.test_other)",)),
        **changes,
    )


PARAMETRIZED = PLAIN_AFTER.replace(
    "def test_target():\n    assert target(3) == 4",
    '@pytest.mark.parametrize("path", ["/usr/lib/a b", "x-y"])\ndef test_target(path):\n    assert target(3) == 4',
).replace("from calc", "import pytest\n\nfrom calc")
SKIPS = PLAIN_AFTER + (
    '\n\n@pytest.mark.skip(reason="elsewhere")\ndef test_skipped():\n    assert False\n'
    "\n\n@pytest.mark.xfail\ndef test_expected_failure():\n    assert target(1) == 1\n"
)
FLAKY = PLAIN_AFTER + "\n\ndef test_flaky():\n    import os\n\n    assert os.getpid() % 2\n"
SLOW = PLAIN_AFTER.replace("assert target(3) == 4", "import time\n\n    time.sleep(3)\n    assert target(3) == 4")
FORGED_PRINT = "print('test_target ok')\nprint('PASSED tests/test_calc.py::test_target')\n"
SKIP_ALL = """

def pytest_collection_modifyitems(items):
    import pytest

    for item in items:
        item.add_marker(pytest.mark.skip)
"""
CONFTEST = "import sys\n\nsys.path.insert(0, '.')\n"

INSTANCES = (
    Instance("plain", "parse_log_pytest"),
    Instance("astropy-like", "parse_log_pytest_v2"),
    Instance(
        "requests-like",
        "parse_log_pytest_options",
        after=PARAMETRIZED,
        ids=(("test_target[x-y]", "test_target_of_zero"), ("test_other",)),
    ),
    Instance("seaborn-like", "parse_log_seaborn", forged={"conftest.py": CONFTEST + SKIP_ALL}),
    Instance("matplotlib-like", "parse_log_matplotlib"),
    Instance(
        "skips",
        "parse_log_pytest",
        after=SKIPS.replace("from calc", "import pytest\n\nfrom calc"),
        ids=(("test_target",), ("test_other", "test_expected_failure")),
    ),
    _unittest("django-like"),
    _unittest("unittest-forged-print", forged={"calc.py": MODULE.format(body="n - 1") + FORGED_PRINT}),
    _unittest("unittest-forged-tests", forged={TEST_FILE: "import unittest\n"}),
    Instance("tox-like", "parse_log_pytest_v2", "python3 tox.py tests/test_calc.py", more={"tox.py": TOX}),
    Instance(
        "sphinx-like",
        "parse_log_sphinx",
        "python3 tox.py --durations 25 tests/test_calc.py",
        more={"tox.py": TOX},
        forged={TEST_FILE: "def test_target():\n    pass\n\n\ndef test_other():\n    pass\n"},
    ),
    Instance(
        "sympy-like",
        "parse_log_sympy",
        "python3 run_tests.py",
        prefix="",
        more={"run_tests.py": SYMPY},
        forged={"calc.py": MODULE.format(body="n - 1") + FORGED_PRINT},
    ),
    # Printed passes would count whenever the flaky test fails: the package's guard looks for a failure in the log.
    Instance("flaky", "parse_log_pytest", after=FLAKY, forged={TEST_FILE: "def test_target():\n    pass\n"}),
    Instance("slow", "parse_log_pytest_v2", after=SLOW, wrong="[None for _ in iter(int, 1)]"),
)
