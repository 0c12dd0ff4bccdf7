"""build-images for sandboxes of this machine: a broken environment is one task's trouble, wherever its part begins."""

import json
from pathlib import Path
from typing import Any

MODULE = "steps.build_images"


def make_task(runner: Any, name: str, line: str) -> None:
    folder: Path = runner.workspace / "datasets/d/tasks" / name / "environment"
    folder.mkdir(parents=True)
    (folder.parent / "task.toml").write_text("")
    (folder / "Dockerfile").write_text(f"FROM agentic/base:local\n{line}\n")


def run_parts(runner: Any, shards: int) -> list[Any]:
    sandbox = {"provider": "bubblewrap"}
    common = {"run_id": "r", "data_dir": "datasets/d", "images": {}, "sandbox": sandbox}
    return [runner.run(runner.by_hand(MODULE, {**common, "shard": f"{index}/{shards}"})) for index in range(shards)]


def test_a_broken_task_that_is_a_part_of_its_own_does_not_end_the_run(runner: Any) -> None:
    make_task(runner, "one", "COPY missing /")
    make_task(runner, "two", "WORKDIR /app")
    ended = run_parts(runner, 2)
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    assert '"broken":["one"]' in ended[0].out
    lines = (runner.workspace / "runs/r/images/build-images-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["failed"]


def test_a_task_set_without_any_environment_ends_with_its_last_part(runner: Any) -> None:
    make_task(runner, "one", "COPY missing /")
    make_task(runner, "two", "COPY missing-too /")
    ended = run_parts(runner, 2)
    assert [one.code for one in ended] == [0, 78]
    assert "none of 2 images can be had; one: line 2: COPY found nothing called missing" in ended[1].err
