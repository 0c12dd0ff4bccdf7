"""Paragraphs of plain text."""

from wrapping import wrap


def paragraphs(text):
    """Word lists of the paragraphs; any number of blank lines separates two."""
    found, words = [], []
    for line in text.splitlines():
        if line.strip():
            words += line.split()
        elif words:
            found.append(words)
            words = []
    if words:
        found.append(words)
    return found


def fill(text, width=72, indent=""):
    """Wrap each paragraph; every line starts with the indent, which counts for the width."""
    blocks = []
    for words in paragraphs(text):
        lines = wrap(words, width)
        blocks.append("\n".join(indent + line for line in lines))
    return "\n".join(blocks)
