"""What is said about a task's folder before anything is run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic.tasks.findings import find_problems

SHIPPED = Path(__file__).parents[3] / "tasks"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED / "lru-cache-recency", tmp_path / "sound"))


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


def test_a_task_of_several_steps_has_to_say_that_it_is_graded_where_the_agent_was(task: Path) -> None:
    config = (task / "task.toml").read_text()
    (task / "task.toml").write_text(config + '\n[[steps]]\nname = "one"\n')
    assert any("several steps cannot be graded in a fresh sandbox" in line for line in find_problems(task))
    in_place = '[metadata.grading]\nmode = "in-place"\nreason = "each step goes on from the last"\n'
    (task / "task.toml").write_text(f'{config}\n[[steps]]\nname = "one"\n{in_place}')
    assert not any("several steps" in line for line in find_problems(task))


def test_the_shipped_tasks_have_no_problems() -> None:
    found = {path.parent.name: find_problems(path.parent) for path in SHIPPED.glob("*/task.toml")}
    assert len(found) >= 12
    assert {name: problems for name, problems in found.items() if problems} == {}


def write_no_reward(task: Path) -> None:
    (task / "tests/judge.py").unlink()
    (task / "tests/test.sh").write_text("#!/bin/sh\npython3 /tests/test_hidden.py\n")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (remove("task.toml"), "task.toml is missing"),
        (remove("instruction.md"), "instruction.md is missing"),
        (remove("tests/test.sh"), "tests/test.sh is missing"),
        (remove("solution/solve.sh"), "solution/solve.sh is missing"),
        (remove("environment/Dockerfile"), "neither environment/Dockerfile nor environment.docker_image"),
        (write("instruction.md", " \n"), "instruction.md is empty"),
        (write("task.toml", "[agent\n"), "task.toml is not valid TOML"),
        (replace("task.toml", "timeout_sec = 900.0", 'timeout_sec = "soon"'), "task.toml: agent.timeout_sec: "),
        (replace("task.toml", "timeout_sec = 60.0", ""), "task.toml: verifier.timeout_sec is missing"),
        (replace("tests/test.sh", "#!/bin/sh", ""), "tests/test.sh has no #! line"),
        (write_no_reward, "tests/test.sh writes no reward"),
        (
            replace("task.toml", "[environment]", '[metadata.grading]\nmode = "in-place"\n[environment]'),
            "task.toml: metadata.grading: Value error, grading.mode is in-place",
        ),
    ],
)
def test_a_fault_is_one_line_that_names_it(task: Path, change: Callable[[Path], None], problem: str) -> None:
    change(task)
    (found,) = find_problems(task)
    assert found.startswith(problem)
    assert "\n" not in found


def test_a_folder_whose_name_cannot_be_an_id_is_named(task: Path) -> None:
    (found,) = find_problems(task.rename(task.with_name("two words")))
    assert "'two words'" in found


def test_several_faults_are_several_lines(task: Path) -> None:
    (task / "instruction.md").unlink()
    (task / "solution/solve.sh").unlink()
    assert len(find_problems(task)) == 2


def test_what_is_no_folder_is_said_so(tmp_path: Path) -> None:
    (found,) = find_problems(tmp_path / "nowhere")
    assert "is no folder" in found
