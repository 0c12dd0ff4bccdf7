"""The page of the proxy's figures, where one part was measured again."""

import json
from pathlib import Path
from typing import Any

from benchmarks.proxy.summary import measured_again
from benchmarks.proxy.table import page

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def earlier() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / "proxy.json").read_text("utf-8"))
    return result


def later(at_1k: float, at_128k: float) -> dict[str, Any]:
    rows = [{"history_tokens": tokens, "plan_ms": ms} for tokens, ms in ((1_000, at_1k), (128_000, at_128k))]
    return {"date": "2027-01-01 00:00 UTC", "machine": {"load_before": [0.1, 0.2, 0.3]}, "phases": rows, "loads": []}


def test_a_part_that_is_measured_again_replaces_its_figures_and_its_goal_alone() -> None:
    before = earlier()
    after = measured_again(later(0.5, 0.75), ["phases"], before)
    assert after["phases"] == later(0.5, 0.75)["phases"]
    assert after["loads"] == before["loads"]
    changed = [new for new, old in zip(after["goals"], before["goals"], strict=True) if new != old]
    assert [(goal["goal"], goal["measured"]) for goal in changed] == [
        ("planning at 128k of history, times that at 1k", 1.5)
    ]


def test_the_page_says_what_was_measured_again_and_when() -> None:
    shown = page(measured_again(later(0.5, 0.75), ["phases"], earlier()))
    assert f"on {earlier()['date']}" in shown
    assert "`python -m benchmarks.proxy --only phases` on 2027-01-01 00:00 UTC, load before it 0.1, 0.2, 0.3." in shown


def test_the_committed_page_is_that_of_the_committed_figures() -> None:
    assert (RESULTS / "proxy.md").read_text("utf-8") == page(earlier())
