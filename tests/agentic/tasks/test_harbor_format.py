"""Task folders against Harbor's own models, and refusals that name the file."""

from pathlib import Path

import pytest
from harbor.models.task.config import TaskConfig
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import resolve_task_verifier_mode, resolve_verifier_environment_definition

from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import CONFIG, TaskFolder, TaskSpec, read_task, write_task
from agentic.tasks.mutation.folders import make_folder
from agentic.tasks.mutation.generator import Recipe, generate

MUTANT = generate(1, "format", Recipe())[0]


@pytest.fixture(params=[False, True], ids=["shared", "separate"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    task = make_folder(MUTANT, "train-0000-bounds", separate_grading=request.param)
    write_task(task, tmp_path / task.task_id)
    return tmp_path / task.task_id


def test_harbor_reads_what_was_written(folder: Path) -> None:
    task = Task(folder)
    assert task.instruction.strip() == MUTANT.instruction
    assert task.config.task is not None
    assert task.config.task.name == "repair/train-0000-bounds"
    assert task.config.environment.network_mode.value == "no-network"
    assert TaskConfig.model_validate_toml((folder / CONFIG).read_text()) == task.config


def test_separate_grading_sees_the_repaired_file_in_a_fresh_copy_of_the_environment(tmp_path: Path) -> None:
    for separate in (False, True):
        place = tmp_path / f"task-{separate}"
        write_task(make_folder(MUTANT, place.name, separate_grading=separate), place)
        task = Task(place)
        assert resolve_task_verifier_mode(task.config).value == ("separate" if separate else "shared")
        assert task.config.artifacts == (["/app/mod.py"] if separate else [])
        definition = resolve_verifier_environment_definition(task.config, task.paths)
        assert (definition is not None) == separate
        if definition is not None:
            assert definition.directory == (place / "environment").resolve()
            assert not definition.bundled_tests


def test_what_was_read_is_what_was_written(folder: Path, tmp_path: Path) -> None:
    task = read_task(folder)
    write_task(task, tmp_path / "copy" / task.task_id)
    assert read_task(tmp_path / "copy" / task.task_id) == task
    assert (folder / "tests/test.sh").stat().st_mode & 0o111


@pytest.mark.parametrize("missing", ["instruction.md", "tests/test.sh", "environment/Dockerfile"])
def test_a_missing_part_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(DataError, match=missing):
        read_task(folder)


def test_broken_toml_is_named(folder: Path) -> None:
    (folder / CONFIG).write_text("[task\n")
    with pytest.raises(DataError, match="not valid TOML"):
        read_task(folder)


def test_a_ready_image_replaces_the_dockerfile(folder: Path) -> None:
    (folder / "environment/Dockerfile").unlink()
    (folder / CONFIG).write_text('[environment]\ndocker_image = "example/image:1"\n')
    assert read_task(folder).task_id == folder.name


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "tests/../../x"])
def test_files_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="leaves the task's folder"):
        write_task(TaskFolder("task", {name: b""}), tmp_path / "task")


def test_names_are_quoted_as_toml() -> None:
    config = TaskConfig.model_validate_toml(TaskSpec(name="org/a", difficulty='e"asy', category="c\\d").to_toml())
    assert config.metadata == {"difficulty": 'e"asy', "category": "c\\d"}
