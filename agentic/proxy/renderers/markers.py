"""Finds markers in text that arrives in pieces."""


def split_at(text: str, markers: tuple[str, ...], is_end: bool) -> tuple[str, str | None, str]:
    """Text before the first marker, the marker, and the rest; without a marker, the rest is what may begin one."""
    found = [(place, marker) for marker in markers if (place := text.find(marker)) >= 0]
    if found:
        place, marker = min(found)
        return text[:place], marker, text[place + len(marker) :]
    kept = 0 if is_end else max((_overlap(text, marker) for marker in markers), default=0)
    return text[: len(text) - kept], None, text[len(text) - kept :]


def _overlap(text: str, marker: str) -> int:
    """How many characters at the end of the text are a beginning of the marker."""
    start = text.find(marker[0], len(text) - min(len(marker) - 1, len(text)))
    while start >= 0 and not marker.startswith(text[start:]):
        start = text.find(marker[0], start + 1)
    return len(text) - start if start >= 0 else 0
