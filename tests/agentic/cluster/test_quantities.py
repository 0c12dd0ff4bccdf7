"""Amounts are read as Kubernetes writes them, and nothing else is taken for one."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.cluster.quantities import GIB, SUFFIXES, as_cpus, as_gib, quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", "0.5"),
        ("8", "8"),
        (8, "8"),
        ("0.1", "0.1"),
        (".5", "0.5"),
        ("2.", "2"),
        ("1e3", "1000"),
        ("12E6", "12000000"),
        ("1E", "1000000000000000000"),
        ("200Gi", str(200 * GIB)),
        ("1k", "1000"),
        ("1Ki", "1024"),
        ("100n", "0.0000001"),
        ("-1", "-1"),
    ],
)
def test_an_amount_is_the_number_that_it_stands_for(text: object, amount: str) -> None:
    assert quantity(text) == Decimal(amount)


@pytest.mark.parametrize(
    "text", ["", "Gi", "lots", "NaN", "Infinity", "1_000", "1 Gi", "1gi", "1KiB", "0x10", "1e", "m1", None]
)
def test_what_is_no_amount_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is no amount such as"):
        quantity(text)


@given(number=st.decimals(0, 10**9, places=3), suffix=st.sampled_from(["", *SUFFIXES]))
def test_each_suffix_multiplies(number: Decimal, suffix: str) -> None:
    assert quantity(f"{number}{suffix}") == number * SUFFIXES.get(suffix, Decimal(1))


def test_people_read_cpus_and_gib() -> None:
    assert (as_cpus(Decimal("7.90")), as_cpus(Decimal(8)), as_gib(Decimal(55 * GIB))) == ("7.9", "8", "55.0 GiB")
