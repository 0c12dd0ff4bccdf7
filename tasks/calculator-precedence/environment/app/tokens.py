"""Text into numbers and symbols."""

import re

TOKEN = re.compile(r"\s*(?:(\d+\.\d+|\d+)|(\*\*|[-+*/()]))")


def tokenize(text):
    """Return floats and symbols; anything else is refused with its position."""
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            raise ValueError(f"unexpected {text[position:].lstrip()[0]!r} at {position}")
        number, symbol = match.groups()
        tokens.append(float(number) if number else symbol)
        position = match.end()
    return tokens
