"""A call of the proxy does not cost more the longer the history: ratios of processor time, for a busy machine too."""

from pathlib import Path

import pytest

from benchmarks.proxy.model import Text, write_model_folder
from benchmarks.proxy.phases import measure_phases

pytestmark = [pytest.mark.speed, pytest.mark.timeout(180)]


def test_planning_and_committing_a_turn_cost_the_same_after_128k_tokens_as_after_1k(tmp_path: Path) -> None:
    model = write_model_folder(tmp_path / "model", vocabulary=4000, files=12)
    first, *_, last = measure_phases(model, Text(model, files=12), repeats=9)
    assert (first["history_tokens"], last["history_tokens"]) == (1_000, 128_000)
    assert last["plan_ms"] <= 2 * first["plan_ms"]
    assert last["commit_ms"] <= 2 * first["commit_ms"]
    assert last["reply_ms"] <= 2 * first["reply_ms"]
