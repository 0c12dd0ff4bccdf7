"""The documents against the tree: what they tell people to type exists, and what they link to is there."""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import settings_reference
from workflows import submit
from workflows.settings import Settings, load_settings

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:work|root|home|Users)/[\w.]+")
REGISTRY = re.compile(
    r"https?://[\w.-]*(?:pypi\.|pythonhosted\.|npmjs\.|crates\.io|maven\.|debian\.org|ubuntu\.com|proxy\.golang)"
)
REQUIREMENTS = [f"R{number}" for number in (*range(1, 19), *range(20, 25), *range(30, 35))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands(start: str) -> Iterator[tuple[str, list[str]]]:
    """(document, words) of every command that begins so, in blocks and in `inline code`, comments and pipes cut off."""
    for document in DOCUMENTS:
        text = document.read_text()
        blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
        for line in (*(line for block in blocks for line in block.splitlines()), *inline):
            if line.strip().startswith(start):
                yield name_of(document), shlex.split(re.split(r"\s[>|]\s", line.strip())[0], comments=True)


def make_targets() -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+):.*?## (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of tracked files")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def test_every_make_target_that_a_document_names_exists() -> None:
    named = [(document, word) for document, words in commands("make ") for word in words[1:] if "=" not in word]
    assert len(named) > 5
    assert [(document, word) for document, word in named if word not in make_targets()] == []


def test_make_alone_lists_every_target_with_its_help() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0
    phony = re.findall(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for line in phony for target in line.split()}
    assert targets == set(make_targets())
    for target, text in make_targets().items():
        assert re.search(rf"make {target}\s+{re.escape(text)}", shown.stdout), target


def test_every_submit_command_that_a_document_shows_is_understood() -> None:
    shown = list(commands("python workflows/submit.py"))
    assert len(shown) > 5
    for _, words in shown:
        options, rest = submit.parse(words[2:])
        settings = [word for word in rest if "=" in word]
        if options.profile is None or not options.profile.endswith(".yaml"):
            load_settings(options.profile or "swe-qwen2.5-7b", settings, {})


def test_every_module_that_a_document_runs_answers_help() -> None:
    shown = {words[2] for _, words in commands("python -m ") if not words[2].endswith("NAME")}
    assert "agentic.report.comparison" in shown
    for module in sorted(shown):
        assert importlib.util.find_spec(module), module
        answered = subprocess.run(
            [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=30
        )
        assert (answered.returncode, "usage:" in answered.stdout) == (0, True), module


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    relative = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in relative if not (document.parent / target).exists()] == []


def test_no_tracked_file_names_a_registry_or_a_place_on_one_machine() -> None:
    found = []
    for path in tracked_files():
        if path.suffix in {".png", ".parquet", ".safetensors"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_pins_hold_names_and_versions_alone() -> None:
    for name in ("cpu.txt", "gpu.txt"):
        lines = (ROOT / "constraints" / name).read_text().splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert len(pins) > 200
        assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.!+]+( ; .+)?", line)] == []


def declared_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[<>=!\[ ;]", requirement)[0] for requirement in declared}
    return names - {"agentic-rl"}


def test_every_dependency_says_what_it_is_for() -> None:
    explained = (ROOT / "docs/dependencies.md").read_text()
    assert sorted(name for name in declared_dependencies() if not re.search(rf"\b{re.escape(name)}\b", explained)) == []


def test_the_settings_reference_is_what_the_models_say() -> None:
    assert (ROOT / "docs/settings.md").read_text() == settings_reference.render(), "run make docs"


@pytest.mark.parametrize("section", Settings.model_fields)
def test_every_setting_is_explained(section: str) -> None:
    (part,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", settings_reference.render(), re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", part, re.MULTILINE)
    assert rows
    assert [key for key, _, _, text in rows if not text] == []


def test_the_changelog_has_a_section_for_what_is_next_or_for_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections
    assert sections[0].startswith(("Unreleased", version))


def coverage_rows() -> dict[str, list[str]]:
    rows = re.findall(r"^\| (R\d+) \|(.+)\|$", (ROOT / "docs/coverage.md").read_text(), re.MULTILINE)
    return {row: [cell.strip() for cell in cells.split("|")] for row, cells in rows}


def test_coverage_has_a_row_for_each_requirement_with_a_known_state() -> None:
    rows = coverage_rows()
    assert list(rows) == REQUIREMENTS
    assert {cells[1] for cells in rows.values()} <= {"works", "first form", "not yet"}


def test_what_coverage_claims_is_shown_by_something_that_exists() -> None:
    for row, (_, state, shown, *_) in coverage_rows().items():
        named = re.findall(r"`((?:tests|docs)/[^`]+|make [^`]+|python [^`]+)`", shown)
        assert bool(named) == (state != "not yet"), f"{row} is {state} but shows {named}"
        paths = [name for name in named if name.startswith(("tests/", "docs/"))]
        assert [name for name in paths if not (ROOT / name).exists()] == [], row


def test_ci_runs_what_the_readme_promises() -> None:
    script = (ROOT / ".ci/run").read_text()
    for command in ("make check", "make test", "-m e2e"):
        assert command in script
    assert "make test " in (ROOT / "README.md").read_text()


def test_what_has_a_marker_is_left_to_a_target_of_its_own() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    names = {marker.partition(":")[0] for marker in options["markers"]} - {"scale"}  # those are of the cluster too
    assert {name for name in names if f"not {name}" not in options["addopts"]} == set()
