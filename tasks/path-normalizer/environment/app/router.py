"""Links between pages of one site."""

from paths import normalize, parent


def resolve(base, link):
    """Return the absolute path that `link` on page `base` leads to; queries and fragments are dropped."""
    target = link.partition("#")[0].partition("?")[0]
    if not target:
        return normalize(base)
    return normalize(parent(base) + target)


def breadcrumbs(path):
    """Every folder from the root down to the page."""
    trail = ["/"]
    parts = [part for part in normalize(path).split("/") if part]
    for index in range(len(parts)):
        trail.append("/" + "/".join(parts[: index + 1]))
    return trail
