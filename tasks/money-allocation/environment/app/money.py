"""Amounts as whole cents."""

from decimal import Decimal, InvalidOperation


def parse(text):
    """Return the cents of an amount such as `12.50`."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is no amount") from None
    return int(amount * 100)


def show(cents):
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"
