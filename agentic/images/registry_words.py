"""A registry's own words about an error, for the middle of a message."""

import json

CHARACTERS = 200


def said(body: bytes) -> str:
    """Empty when the body holds none."""
    try:
        document = json.loads(body)
        errors = document.get("errors") or [document]
        words = " ".join(str(errors[0].get(key) or "") for key in ("code", "message", "details"))
    except (ValueError, AttributeError, IndexError, KeyError, TypeError):
        return ""
    words = " ".join(words.split())[:CHARACTERS]
    return f", {words}" if words else ""
