"""`python -m agentic.tasks mutate` on a small library, in real sandboxes; pytest comes from the registry."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentic.tasks.manifest import hash_tree

pytestmark = [pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
MODULE = '''\
import time


def total(prices, discount):
    """Sum after discount, never below zero."""
    if discount < 0:
        raise ValueError(discount)
    return max(sum(prices) - discount, 0)


def unused(a):
    return a + 1


def untested_branch(flag):
    if flag and time.time() < 0:
        return 1
    return 2
'''
TESTS = """\
import itertools

import pytest

from shop import total, untested_branch


@pytest.mark.parametrize("prices", [[3], [4, 5]])
def test_total(prices):
    assert total(prices, 1) == sum(prices) - 1


def test_never_negative():
    assert total([1], 5) == 0


def test_negative_discount():
    with pytest.raises(ValueError):
        total([1], -1)


def test_branch():
    assert untested_branch(False) == 2


def test_broken_before():
    assert total([1], 0) == 7
"""
OTHER = "def test_arithmetic():\n    assert 1 + 1 == 2\n"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library") / "shop-source"
    for name, text in {"shop.py": MODULE, "tests/test_shop.py": TESTS, "tests/test_other.py": OTHER}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tests/conftest.py").write_text("import sys\nsys.path.insert(0, '.')\n")
    (folder / "tests/test_optional.py").write_text("import never_installed\n")
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


def mutate(shop: Path, images: Path, out: Path, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "agentic.tasks", "mutate", str(shop), "--out", str(out), "--images", str(images)]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def made(shop: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    code, _, error = mutate(shop, images, out, "--count", "2", "--results", str(out / "results.json"))
    if "pip download" in error:
        pytest.skip("no package registry can be reached, from which the tasks' pytest comes")
    assert code == 0, error
    return out


def tasks(out: Path) -> list[Path]:
    return sorted(path.parent for path in out.glob("*/task.toml"))


def expected(task: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((task / "tests/expected.json").read_text())
    return found


def test_tasks_say_what_failed_and_what_passed_and_hide_the_failing_tests(made: Path) -> None:
    assert len(tasks(made)) == 2
    for task in tasks(made):
        record = expected(task)
        assert record["FAIL_TO_PASS"]
        assert "tests/test_other.py::test_arithmetic" in record["PASS_TO_PASS"]
        assert "tests/test_shop.py::test_broken_before" not in record["FAIL_TO_PASS"] + record["PASS_TO_PASS"]
        assert record["FAIL_TO_PASS"][0] in (task / "instruction.md").read_text()
        source = task / "environment/source"
        assert (source / "tests/test_other.py").is_file()
        assert not (source / "tests/test_shop.py").exists()
        assert (task / "tests/suite/tests/test_shop.py").read_text() == TESTS
        assert (source / "shop.py").read_text() != MODULE
        pins = (task / "environment/wheels/requirements.txt").read_text().splitlines()
        assert any(line.startswith("pytest==") and "--hash=sha256:" in line for line in pins)


def test_yield_and_time_are_reported_with_the_machine(made: Path) -> None:
    (result,) = json.loads((made / "results.json").read_text()).values()
    assert result["tasks"] == result["tried"]["kept"] == 2
    assert result["seconds_per_task"] > 0
    assert result["tests"] == 6
    assert result["machine"]["processors"] >= 1


def test_the_same_seed_goes_on_where_it_stopped_and_gives_what_one_call_gives(
    made: Path, shop: Path, images: Path, tmp_path: Path
) -> None:
    assert mutate(shop, images, tmp_path, "--count", "1")[0] == 0
    (first,) = tasks(tmp_path)
    attempts = (tmp_path / ".work/attempts.jsonl").read_text()
    code, _, error = mutate(shop, images, tmp_path, "--count", "2")
    assert code == 0, error
    assert (tmp_path / ".work/attempts.jsonl").read_text().startswith(attempts)
    assert [path.name for path in tasks(tmp_path)] == [path.name for path in tasks(made)]
    assert first in tasks(tmp_path)
    for one, other in zip(tasks(tmp_path), tasks(made), strict=True):
        assert hash_tree(one) == hash_tree(other)
    code, _, error = mutate(shop, images, tmp_path, "--count", "2", "--seed", "1")
    assert code == 78
    assert "give another folder" in error


@pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")
def test_repairs_count_however_they_are_written_and_tricks_with_tests_do_not(made: Path, images: Path) -> None:
    import asyncio

    from agentic.authoring.trying import task_trials
    from agentic.sandbox.settings import BubblewrapSandbox

    task = tasks(made)[0]
    rewritten = MODULE.replace(
        "max(sum(prices) - discount, 0)", "0 if discount > sum(prices) else sum(prices) - discount"
    )
    attempts = {
        "rewritten": (f"cat > /app/shop.py <<'END'\n{rewritten}END",),
        "skip in conftest": ("echo 'collect_ignore_glob = [\"*\"]' > /app/conftest.py",),
        "rewritten tests": ("echo 'def test_total(): pass' > /app/tests/test_shop.py",),
        "exit": ("echo 'import os; os._exit(0)' >> /app/shop.py",),
        "reward": ("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",),
        "configuration": ("printf '[pytest]\\naddopts = -k nothing\\n' > /app/pytest.ini",),
    }

    async def rewards() -> dict[str, float | None]:
        async with task_trials([task], images, BubblewrapSandbox(), 2) as (trials, broken):
            assert broken == {}
            return {name: (await trials.commands(task, 60.0, words)).reward for name, words in attempts.items()}

    assert asyncio.run(rewards()) == {name: float(name == "rewritten") for name in attempts}


def test_a_library_without_passing_tests_says_what_is_missing(
    shop: Path, images: Path, tmp_path: Path, made: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(shop, bare)
    (bare / "tests/test_other.py").unlink()
    (bare / "tests/test_shop.py").write_text("def test_it():\n    import not_installed\n")
    code, _, error = mutate(bare, images, tmp_path / "out", "--count", "1")
    assert code == 78
    assert "No module named 'not_installed'" in error
    assert "--with" in error


def test_what_its_tests_need_can_be_named_after_the_first_try_said_so_and_not_once_tasks_are_made(
    shop: Path, images: Path, tmp_path: Path, made: Path
) -> None:
    needy, out = tmp_path / "needy", tmp_path / "out"
    shutil.copytree(shop, needy)
    (needy / "tests/test_other.py").write_text("import inflection\n\n\ndef test_it():\n    assert inflection\n")
    (needy / "tests/test_shop.py").write_text("import inflection\n" + TESTS)
    assert "No module named 'inflection'" in mutate(needy, images, out, "--count", "1")[2]
    code, _, error = mutate(needy, images, out, "--count", "1", "--with", "inflection")
    assert code == 0, error
    assert len(tasks(out)) == 1
    code, _, error = mutate(needy, images, out, "--count", "1")
    assert (code, "give another folder" in error) == (78, True)
