"""build-images with a client of BuildKit on a script that pushes to a registry double: found, built, broken, flaky."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fake_registry import FakeRegistry

MODULE = "steps.build_images"

CLIENT = """#!/usr/bin/env python3
\"\"\"Plays BuildKit's client: pushes what it is told to, unless the Dockerfile says `fail`; `flaky` fails once.\"\"\"
import json, pathlib, sys, urllib.request

if "debug" in sys.argv:
    raise SystemExit(0)
words = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word and not word.startswith("--opt"))
context = [word for word in sys.argv if word.startswith("--local=context=")][0].removeprefix("--local=context=")
text = (pathlib.Path(context) / "Dockerfile").read_text()
seen = pathlib.Path(context).parent / "seen"
if "fail" in text:
    print('error: failed to solve: process "/bin/sh -c fail" did not complete successfully: exit code: 1')
    raise SystemExit(1)
if "never" in text:
    print("error: failed to solve: r.example/base:1: dial tcp 10.0.0.1:443: i/o timeout")
    raise SystemExit(1)
if "flaky" in text and not seen.exists():
    seen.touch()
    print("error: failed to solve: r.example/base:1: unexpected status code 429 Too Many Requests")
    raise SystemExit(1)
for name in words["output"].split('"')[1].removeprefix("name=").split(","):
    host, _, rest = name.partition("/")
    repository, _, tag = rest.rpartition(":")
    body = json.dumps({"context": context}).encode()
    url = f"http://{host}/v2/{repository}/manifests/{tag}"
    urllib.request.urlopen(urllib.request.Request(url, data=body, method="PUT")).close()
"""


def make_task(runner: Any, name: str, line: str) -> None:
    folder = runner.workspace / "datasets/d/tasks" / name / "environment"
    folder.mkdir(parents=True)
    (folder.parent / "task.toml").write_text("")
    (folder / "Dockerfile").write_text(f"FROM scratch\n# {line}\n")


def inputs(registry: FakeRegistry) -> dict[str, Any]:
    images = {
        "builder": "direct",
        "buildkit_address": "tcp://127.0.0.1:1",
        "retry_seconds": 0.01,
        "registry": {"plain_http": [registry.host]},
    }
    sandbox = {"provider": "pod", "registry": registry.host}
    return {"run_id": "r", "data_dir": "datasets/d", "shard": "0/1", "images": images, "sandbox": sandbox}


def results(runner: Any) -> dict[str, dict[str, Any]]:
    lines = (runner.workspace / "runs/r/images/build-images-0.jsonl").read_text().splitlines()
    return {row["task"]: row for row in map(json.loads, lines)}


@pytest.fixture
def buildctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client in PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/buildctl").write_text(CLIENT)
    (tmp_path / "bin/buildctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


@pytest.mark.usefixtures("buildctl")
async def test_images_are_found_built_and_broken_each_by_itself(runner: Any) -> None:
    for name, line in (("one", "plain"), ("two", "fail"), ("three", "flaky"), ("four", "there")):
        make_task(runner, name, line)
    async with FakeRegistry() as registry:
        digest = registry.push("swe-bench/four", "latest")
        ended = await asyncio.to_thread(runner.run, runner.by_hand(MODULE, inputs(registry)))
        assert ended.code == 0, ended.err
        statuses = {task: row["status"] for task, row in results(runner).items()}
        assert statuses == {"one": "built", "two": "failed", "three": "built", "four": "found"}
        assert results(runner)["four"]["image"] == f"{registry.host}/swe-bench/four@{digest}"
        assert "two: failed: failed to solve: process" in ended.out
        progress = json.loads((runner.workspace / "runs/r/progress/build-images-0.json").read_text())
        assert progress["message"] == "2 built, 1 there already, 1 broken"

        again = await asyncio.to_thread(runner.run, runner.by_hand(MODULE, inputs(registry)))
        assert again.code == 0, again.err
        assert '"built":0,"reused":3' in again.out


async def run_parts(runner: Any, shards: int) -> list[Any]:
    """How each part of the task set ends, one after the other."""
    ended = []
    async with FakeRegistry() as registry:
        for index in range(shards):
            given = {**inputs(registry), "shard": f"{index}/{shards}"}
            given["images"]["attempts"] = 2
            ended.append(await asyncio.to_thread(runner.run, runner.by_hand(MODULE, given)))
    return ended


@pytest.mark.usefixtures("buildctl")
async def test_a_broken_task_that_is_a_part_of_its_own_does_not_end_the_run(runner: Any) -> None:
    for name, line in (("one", "fail"), ("two", "plain"), ("three", "fail too")):
        make_task(runner, name, line)
    ended = await run_parts(runner, 3)
    assert [one.code for one in ended] == [0, 0, 0], [one.err for one in ended]
    assert sum('"broken":[]' in one.out for one in ended) == 1


@pytest.mark.usefixtures("buildctl")
@pytest.mark.parametrize(("line", "code"), [("fail", 78), ("never", 75)])
async def test_a_task_set_without_any_image_ends_with_its_last_part(runner: Any, line: str, code: int) -> None:
    for name in ("one", "two", "three"):
        make_task(runner, name, f"{line} {name}")
    ended = await run_parts(runner, 3)
    assert [one.code for one in ended] == [0, 0, code]
    assert "none of 3 images can be had" in ended[-1].err


async def test_a_missing_client_is_told_before_anything_is_built(runner: Any, monkeypatch: Any) -> None:
    make_task(runner, "one", "plain")
    monkeypatch.setenv("PATH", "/nowhere")
    async with FakeRegistry() as registry:
        ended = await asyncio.to_thread(runner.run, runner.by_hand(MODULE, inputs(registry)))
    assert ended.code == 78
    assert "there is no buildctl in PATH" in ended.err
