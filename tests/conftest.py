"""Golden files: what the code generates, kept beside the tests and read in review.

A test hands its text to the fixture `golden`, which compares. `make golden` runs those tests alone, with the option
`--write-golden`, which writes instead; CI never does. And no property is a matter of milliseconds: what is timed is in
benchmarks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

OPTION = "--write-golden"

type Golden = Callable[..., None]
"""`golden(path, text, parse=...)`: `parse` makes the comparison one of meaning, such as `yaml.safe_load`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="write golden files instead of comparing; runs only their tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(OPTION):
        items[:] = [item for item in items if "golden" in getattr(item, "fixturenames", ())]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with a golden file, or writes the file."""
    writes = request.config.getoption(OPTION)

    def check(path: Path, text: str, parse: Callable[[str], Any] = str) -> None:
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path.name} is missing: run make golden and read what it wrote"
        assert parse(text) == parse(path.read_text()), f"{path.name} differs: run make golden and read its diff"

    return check
