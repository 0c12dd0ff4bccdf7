"""The split by repository, and the digests that a manifest keeps."""

import json
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agentic.tasks.manifest import hash_tree
from agentic.tasks.prepare import prepare
from agentic.tasks.settings import FolderData
from agentic.tasks.splits import split_evenly
from agentic.tasks.swebench import repository_of

VERIFIED = {
    "django__django": 231,
    "sympy__sympy": 75,
    "sphinx-doc__sphinx": 44,
    "matplotlib__matplotlib": 34,
    "scikit-learn__scikit-learn": 32,
    "astropy__astropy": 22,
    "pydata__xarray": 22,
    "pytest-dev__pytest": 19,
    "pylint-dev__pylint": 10,
    "psf__requests": 8,
    "mwaskom__seaborn": 2,
    "pallets__flask": 1,
}
"""SWE-bench Verified by repository."""


def ids_of(sizes: dict[str, int]) -> list[str]:
    return [f"{name}-{number}" for name, size in sizes.items() for number in range(1000, 1000 + size)]


def test_verified_is_split_400_to_100_with_the_same_share_of_each_repository() -> None:
    ids = ids_of(VERIFIED)
    split = split_evenly(ids, 100, 0, repository_of)
    assert {name: len(members) for name, members in split.items()} == {"train": 400, "held-out": 100}
    held_out = Counter(map(repository_of, split["held-out"]))
    assert all(abs(held_out[name] - size / 5) < 1 for name, size in VERIFIED.items())
    assert split == split_evenly(reversed(ids), 100, 0, repository_of)
    assert split != split_evenly(ids, 100, 1, repository_of)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 30), min_size=1), st.data(), st.integers(0, 5))
def test_any_split_is_whole_and_even(sizes: dict[str, int], data: st.DataObject, seed: int) -> None:
    ids = ids_of(sizes)
    held_out = data.draw(st.integers(0, len(ids)))
    split = split_evenly(ids, held_out, seed, repository_of)
    assert sorted(split["train"] + split["held-out"]) == sorted(ids)
    assert len(split["held-out"]) == held_out
    counts = Counter(map(repository_of, split["held-out"]))
    assert all(abs(counts[name] - held_out * size / len(ids)) < 1 for name, size in sizes.items())


def test_the_manifest_has_a_digest_of_each_task(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[3] / "tasks"
    prepare(FolderData(path=str(shipped)), tmp_path / "set", lambda done, total, line: None)
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    folders = sorted((tmp_path / "set/tasks").iterdir())
    assert manifest["tasks_sha256"] == {folder.name: hash_tree(folder) for folder in folders}
    assert len(set(manifest["tasks_sha256"].values())) == len(folders)
