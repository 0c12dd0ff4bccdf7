"""The table of mutants follows the code; `make proxy-mutants` runs it."""

import pytest

from scripts.proxy_mutants import MUTANTS, PROOF, ROOT, Mutant, occurrences


def test_every_invariant_has_a_mutant() -> None:
    assert {mutant.invariant for mutant in MUTANTS} == set(range(1, 12))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.invariant}-{mutant.file}")
def test_a_mutant_changes_one_place_and_has_a_test(mutant: Mutant) -> None:
    assert occurrences(mutant) == 1, "bring the table in scripts/proxy_mutants.py up to date"
    assert f"def test_invariant_{mutant.invariant:02}_" in (ROOT / PROOF).read_text()
