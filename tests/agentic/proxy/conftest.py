"""Makes the shared doubles importable, and gives each test a model folder and a rig."""

import sys
from pathlib import Path

import pytest

DOUBLES = str(Path(__file__).parents[2] / "doubles")
if DOUBLES not in sys.path:
    sys.path.insert(0, DOUBLES)

from proxy_tokens import TINY_TEMPLATE, write_model_folder  # noqa: E402 - the path has to be known first


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """A model folder with the tiny policy's template."""
    return write_model_folder(tmp_path / "tiny", TINY_TEMPLATE)
