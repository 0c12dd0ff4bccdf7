import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from agentic.report import write
from agentic.report.page import duration, without_secrets
from agentic.report.summary import Summary
from workflows import pipeline
from workflows.settings import load_settings

RunFolder = Callable[..., Path]
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """What a test asks of a page: is every tag closed, what does it load, what does it say."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.alternatives: list[str] = []
        self.text = ""
        self.feed(path.read_text())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "srcset", "data", "action"}:
                self.loads.append(value or "")
            if name == "alt":
                self.alternatives.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_holds_all_that_it_shows(reported_run: Path) -> None:
    page = Page(reported_run / "report.html")
    assert page.open == []
    assert len(page.loads) == 6
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.loads)
    assert all(page.alternatives)
    assert "url(" not in page.text


def test_the_result_stands_on_the_page_with_counts_and_intervals(reported_run: Path) -> None:
    text = Page(reported_run / "report.html").text
    assert "0.30 → 0.75" in re.sub(r"\s+", " ", text)
    assert "(38/128; 0.225 to 0.381)" in text
    assert "a gain: +0.453" in text
    assert "not complete" not in text


def test_the_json_beside_it_is_the_summary(reported_run: Path) -> None:
    summary = Summary.model_validate_json((reported_run / "report.json").read_text())
    assert summary.schema_version == 1
    assert summary.splits["repair/same-template"].gain == pytest.approx(58 / 128)


def test_the_settings_become_a_profile_to_run_again(reported_run: Path) -> None:
    page = Page(reported_run / "report.html")
    assert yaml.safe_load((reported_run / "reproduce.yaml").read_text()) == {"train": {"seed": 1, "steps": 12}}
    assert "--profile workspace/runs/demo-1/reproduce.yaml" in page.text
    assert "from profile demo" in page.text


@pytest.mark.parametrize("name", ["demo", "smollm2", "swe-qwen2.5-7b"])
def test_a_run_again_has_the_very_settings_of_the_first(tmp_path: Path, name: str) -> None:
    settings = load_settings(name, ["train.seed=7"], {})
    sections = {section: getattr(settings, section).model_dump(mode="json") for section in pipeline.SECTIONS}
    (tmp_path / "settings.json").write_text(json.dumps({"profile": name, **sections}))
    write(tmp_path)
    again = load_settings(str(tmp_path / "reproduce.yaml"), [], {})
    assert {section: getattr(again, section) for section in sections} == {
        section: getattr(settings, section) for section in sections
    }


def test_writing_again_gives_the_same_bytes_and_leaves_nothing_else(reported_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(reported_run, tmp_path / reported_run.name)
    names = sorted(path.name for path in run.iterdir())
    assert write(run).read_bytes() == (reported_run / "report.html").read_bytes()
    assert sorted(path.name for path in run.iterdir()) == names


@pytest.mark.parametrize("name", ["settings.json", "metrics.jsonl", "evaluation.json", "rollouts"])
def test_a_broken_run_still_gets_a_page_that_says_what_is_missing(run_folder: RunFolder, name: str) -> None:
    path = run_folder() / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = Page(write(path.parent))
    assert page.open == []
    assert "This run is not complete." in page.text


def test_even_an_empty_run_gets_a_page(tmp_path: Path) -> None:
    page = Page(write(tmp_path))
    assert "No evaluation" in page.text
    assert page.loads == []


def test_text_from_a_rollout_cannot_become_markup(run_folder: RunFolder) -> None:
    run = run_folder()
    example = {
        "phase": "evaluate",
        "step": 12,
        "task": "repair-0001",
        "split": "repair/new-template",
        "outcome": "failed",
        "messages": [{"role": "assistant", "content": "<script>alert(1)</script>"}],
    }
    (run / "rollouts/examples.jsonl").write_text(json.dumps(example) + "\n")
    page = write(run)
    assert "<script" not in page.read_text()
    assert "<script>alert(1)</script>" in Page(page).text


def test_values_under_secret_names_are_withheld() -> None:
    settings = {"model": {"hub_token": "hf_abc", "max_tokens": 48}, "list": [{"API_KEY": "k"}], "name": "x"}
    assert without_secrets(settings) == {
        "model": {"hub_token": "(withheld)", "max_tokens": 48},
        "list": [{"API_KEY": "(withheld)"}],
        "name": "x",
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(9.4, "9 s"), (75, "1 min 15 s"), (3725, "1 h 2 min"), (59.6, "1 min 0 s")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
