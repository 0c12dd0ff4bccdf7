"""One image and two tasks for all cheats."""

import sys
from pathlib import Path

import pytest

DOUBLES = str(Path(__file__).parents[1] / "doubles")
if DOUBLES not in sys.path:
    sys.path.append(DOUBLES)

from cheat_rig import CheatRig  # noqa: E402 - the path has to be there first


@pytest.fixture(scope="session")
def rig(tmp_path_factory):
    return CheatRig(tmp_path_factory.mktemp("cheats"))
