"""Splitting bills."""

from money import parse, show


def allocate(cents, weights):
    """Return whole cents for each weight; their sum is `cents`."""
    if not weights or min(weights) < 0 or sum(weights) == 0:
        raise ValueError("weights must not be negative, and one must be positive")
    return [round(cents * weight / sum(weights)) for weight in weights]


def split(total, weights):
    return [show(share) for share in allocate(parse(total), weights)]


def balances(payments):
    """Who gets how much back when `payments` (name -> amount) are shared by all alike; the names decide ties."""
    names = sorted(payments)
    paid = [parse(payments[name]) for name in names]
    shares = allocate(sum(paid), [1] * len(names))
    return {name: show(amount - share) for name, amount, share in zip(names, paid, shares)}
