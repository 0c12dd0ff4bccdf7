"""Build plans from lines such as `app: lib net`."""

from graph import order


def read(text):
    """Return target -> needs; a target may occur on several lines."""
    needs = {}
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if line:
            target, _, rest = line.partition(":")
            needs.setdefault(target.strip(), set()).update(rest.split())
    return needs


def build_order(text):
    return order(read(text))


def affected(text, changed):
    """Targets that have to be built again when `changed` changes, in build order."""
    needs = read(text)
    stale = {changed}
    for node in order(needs):
        if stale & set(needs.get(node, ())):
            stale.add(node)
    return [node for node in order(needs) if node in stale]
