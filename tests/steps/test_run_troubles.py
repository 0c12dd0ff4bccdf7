"""What the files of a local run say about why it did not go well."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from steps.markers import Marker
from steps.run_troubles import find_run_troubles, judge_rollouts


def write_log(run_dir: Path, step: str, text: str, ended: float | None = None) -> None:
    path = run_dir / "logs" / f"{step}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if ended is not None:
        os.utime(path, (ended, ended))


def mark_done(run_dir: Path, step: str, ended: float) -> None:
    Marker(run_dir, step, {}).write({}, 1, ended - 1, ended)


def record(step: int, reward: float | None = 0.0, **more: Any) -> dict[str, Any]:
    return {"step": step, "outcome": "failed" if reward is not None else "infra", "reward": reward, **more}


def names(run_dir: Path) -> list[str]:
    return [trouble.name for trouble in find_run_troubles(run_dir)]


def test_the_log_of_a_step_that_did_not_end_is_searched(tmp_path: Path) -> None:
    write_log(tmp_path, "train", "step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    (trouble,) = find_run_troubles(tmp_path)
    assert (trouble.name, trouble.where) == ("gpu-memory", "log train")


def test_what_a_step_complained_of_before_it_succeeded_is_forgotten(tmp_path: Path) -> None:
    now = time.time()
    write_log(tmp_path, "build-images-0", "ConnectionRefusedError: [Errno 111] Connection refused\n", ended=now)
    mark_done(tmp_path, "build-images", now)
    assert names(tmp_path) == []


def test_a_step_that_was_done_once_and_failed_since_is_searched(tmp_path: Path) -> None:
    now = time.time()
    mark_done(tmp_path, "train", now - 600)
    write_log(tmp_path, "train", "FileNotFoundError: [Errno 2] No such file or directory: '/var/model/x'\n", ended=now)
    assert names(tmp_path) == ["path-missing"]


def test_a_run_that_went_well_shows_nothing(tmp_path: Path) -> None:
    now = time.time()
    for step in ("preflight", "train"):
        write_log(tmp_path, step, f"{step}: done in 3.0 s\n", ended=now)
        mark_done(tmp_path, step, now)
    (tmp_path / "rollouts").mkdir()
    lines = [json.dumps(record(step, float(index % 4 == 0))) for step in (1, 2) for index in range(16)]
    (tmp_path / "rollouts/train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert names(tmp_path) == []


def test_rewards_that_are_all_zero_are_named_once_there_are_enough_of_them() -> None:
    assert list(judge_rollouts([record(1) for _ in range(64)])) == []
    (trouble,) = judge_rollouts([record(step) for step in (1, 2) for _ in range(16)])
    assert trouble.name == "rewards-all-zero"
    assert trouble.message == "32 graded rollouts of 2 steps, mean and highest reward 0.0"


def test_lost_rollouts_are_named_with_their_commonest_reason() -> None:
    lost = [record(1, None, infra_reason="its pod was deleted") for _ in range(20)]
    lost += [record(1, None, infra_reason="the proxy failed") for _ in range(4)]
    (trouble,) = judge_rollouts([*lost, *(record(1, 1.0) for _ in range(8))])
    assert trouble.name == "rollouts-lost"
    assert trouble.message == "24 of 32 are lost; 20 of them: its pod was deleted"


@pytest.mark.parametrize(
    "said",
    [
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "TimeoutError: timed out",
        "ClientConnectorError: Cannot connect to host 10.244.0.12:8089 ssl:default [Connect call failed]",
    ],
)
def test_rollouts_lost_because_agents_do_not_reach_the_proxy_name_it(said: str) -> None:
    reason = f"ModelUnavailableError: no answer from the model's endpoint: {said}"
    found = list(judge_rollouts([record(1, None, infra_reason=reason) for _ in range(20)]))
    assert [trouble.name for trouble in found] == ["rollouts-lost", "proxy-unreachable"]
