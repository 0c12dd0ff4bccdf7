"""Absolute slash-separated paths."""


def normalize(path):
    """Return the path without `.`, `..` and empty parts; a trailing slash is kept."""
    parts = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part:
            parts.append(part)
    return "/" + "/".join(parts)


def parent(path):
    """The folder that a page lies in, with its slash; a folder is its own."""
    return path[: path.rindex("/") + 1]
