"""Amounts as Kubernetes writes them, and as people read them."""

import re
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType

GIB = 1024**3

SUFFIXES: Mapping[str, Decimal] = MappingProxyType(
    {
        **{"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")},
        **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
        **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    }
)

AMOUNT = re.compile(rf"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<suffix>{'|'.join(SUFFIXES)}|)")


def quantity(text: object) -> Decimal:
    """The number that `500m`, `200Gi` or `8` stands for. Raises ValueError for what is none."""
    read = AMOUNT.fullmatch(str(text).strip())
    if read is None:
        raise ValueError(f"{text!r} is no amount such as 500m, 200Gi or 8")
    return Decimal(read["number"]) * (SUFFIXES[read["suffix"]] if read["suffix"] else 1)


def as_cpus(amount: Decimal) -> str:
    return f"{amount:.2f}".rstrip("0").rstrip(".")


def as_gib(amount: Decimal) -> str:
    return f"{amount / GIB:.1f} GiB"
