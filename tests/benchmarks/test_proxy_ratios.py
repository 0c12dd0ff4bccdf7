"""A call of the proxy does not cost more the longer the history: ratios of processor time, for a busy machine too."""

from pathlib import Path

import pytest

from benchmarks.proxy.model import Text, write_model_folder
from benchmarks.proxy.phases import measure_phases

pytestmark = [pytest.mark.speed, pytest.mark.timeout(180)]


def test_a_turn_costs_at_most_twice_as_much_after_128k_tokens_as_after_1k(tmp_path: Path) -> None:
    """Reading the body and writing the ids follow the history, and are left out."""
    model = write_model_folder(tmp_path / "model", vocabulary=4000, files=12)
    first, *_, last = measure_phases(model, Text(model, files=12), repeats=9)
    assert (first["history_tokens"], last["history_tokens"]) == (1_000, 128_000)
    assert last["plan_ms"] <= 2 * first["plan_ms"], "rendering and tokenizing"
    of_turn = [sum(row[f"{phase}_ms"] for phase in ("plan", "reply", "commit")) for row in (first, last)]
    assert of_turn[1] <= 2 * of_turn[0]
