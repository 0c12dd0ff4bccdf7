"""ProxyServerActor on a real Ray, in front of verl's own client and load balancer; only verl's server is scripted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from proxy_tokens import TINY_TEMPLATE, write_model_folder

DRIVER = Path(__file__).with_name("drive_actor.py")
REPOSITORY = Path(__file__).parents[3]
LIMIT, STEPS = 20, {0, 4}


def drive(folder: Path) -> dict[str, Any]:
    environment = os.environ | {
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'doubles'}",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(folder)],
        env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.e2e  # Ray, verl and two actors import for half a minute of CPU
@pytest.mark.timeout(540)
def test_on_ray_the_actor_loses_no_token_when_verl_s_weights_change_or_clients_leave(tmp_path: Path) -> None:
    """One test, since Ray takes its time to start."""
    seen = drive(write_model_folder(tmp_path / "tokenizer", TINY_TEMPLATE))
    assert sorted(seen) == ["base", "resuming"]
    for with_client in seen.values():
        has_every_call_of_the_control_plane(with_client)
        each_token_has_the_step_that_sampled_it(with_client)
        what_is_sampled_after_its_client_has_gone_is_recorded_and_marked(with_client)


def has_every_call_of_the_control_plane(seen: dict[str, Any]) -> None:
    assert seen["where"] == ["agent_url", "control_key", "control_url"]
    assert (seen["heartbeat"], seen["listed"], seen["paused"]) == ("r1", ["r1"], [True, False])
    assert seen["fetched"]
    assert seen["graph"]


def each_token_has_the_step_that_sampled_it(seen: dict[str, Any]) -> None:
    first = [row for rows in seen["sampled"] for row in rows if row[1]]
    assert seen["reply"] == len(first) == LIMIT
    versions = [version for _, _, version in first]
    assert versions == sorted(versions)
    assert set(versions) == STEPS
    before = versions.count(0)
    (prompt, limit), (resumed, rest) = seen["requests"][:2]
    assert (limit, resumed, rest) == (LIMIT, prompt + before, LIMIT - before), "the rest, with the tokens so far"
    assert [token for token, _, _ in first] == [*range(100, 100 + before), *range(100, 100 + rest)]


def what_is_sampled_after_its_client_has_gone_is_recorded_and_marked(seen: dict[str, Any]) -> None:
    assert (seen["running"], seen["complete"], seen["cut"], seen["undelivered"]) == (1, True, {"abandoned": 1}, LIMIT)
    lost = [row for rows in seen["sampled"] for row in rows if not row[1]]
    assert [version for _, _, version in lost] == [4] * LIMIT
    assert len(seen["requests"]) == 3, "asked once, and not aborted"
