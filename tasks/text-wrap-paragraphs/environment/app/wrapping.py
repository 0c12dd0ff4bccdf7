"""Greedy wrapping of words into lines."""


def wrap(words, width):
    """Return lines of words joined by one space, each at most `width` characters long."""
    if width < 1:
        raise ValueError("width must be at least 1")
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) <= width:
            line = f"{line} {word}" if line else word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines
