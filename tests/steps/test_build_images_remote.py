"""build-images where sandboxes run elsewhere: it names images, refuses those without a name, and builds nothing."""

from pathlib import Path
from typing import Any

import pytest

MODULE = "steps.build_images"


def make_task(runner: Any, name: str, *, image: str | None = None, recipe: bool = False) -> Path:
    folder = runner.workspace / "datasets/d/tasks" / name
    (folder / "environment").mkdir(parents=True)
    line = "" if image is None else f'docker_image = "{image}"\n'
    (folder / "task.toml").write_text(f"[environment]\n{line}")
    if recipe:
        (folder / "environment" / "Dockerfile").write_text("FROM agentic/base:local\nRUN true\n")
    return folder


def inputs(**sandbox: Any) -> dict[str, Any]:
    chosen = {"provider": "pod", **sandbox}
    return {"run_id": "r", "data_dir": "datasets/d", "shard": "0/1", "images": {}, "sandbox": chosen}


def test_images_are_named_and_none_is_built(runner: Any) -> None:
    make_task(runner, "one", image="r.io/one:1")
    make_task(runner, "two", recipe=True)
    make_task(runner, "three", image="agentic/base:local")
    ended = runner.run(runner.by_hand(MODULE, inputs(image_pattern="r.io/{task}:v1")))
    assert ended.code == 0, ended.err
    assert "to be in the registry: docker build -t r.io/two:v1 datasets/d/tasks/two/environment" in ended.out
    assert "r.io/one:1" not in ended.out, "whoever names an image has built it"
    progress = (runner.workspace / "runs/r/progress/build-images-0.json").read_text()
    assert "3 images are pulled by name, 1 of them not built here: build and push them" in progress
    assert not (runner.workspace / "images").exists(), "no root folder is of any use to a pod"


def test_a_task_whose_image_has_no_name_is_broken_and_the_others_go_on(runner: Any) -> None:
    make_task(runner, "one", image="r.io/one:1")
    make_task(runner, "two", recipe=True)
    make_task(runner, "three")
    ended = runner.run(runner.by_hand(MODULE, inputs()))
    assert ended.code == 0, ended.err
    assert "two: task two names no image but brings a Dockerfile: set sandbox.image_pattern" in ended.out
    assert "three: it has neither a Dockerfile nor a docker_image in task.toml" in ended.out


@pytest.mark.parametrize("provider", ["pod", "kruise", "agent-sandbox"])
def test_where_no_image_has_a_name_the_step_ends_and_says_what_is_missing(runner: Any, provider: str) -> None:
    make_task(runner, "two", recipe=True)
    ended = runner.run(runner.by_hand(MODULE, inputs(provider=provider)))
    assert ended.code == 78
    assert "none of 1 images can be named; two: task two names no image but brings a Dockerfile: set" in ended.err
    assert not (runner.workspace / "images").exists()
