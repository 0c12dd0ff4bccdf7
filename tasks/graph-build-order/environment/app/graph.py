"""Directed graphs as dictionaries from node to the nodes that it needs."""


class CycleError(ValueError):
    def __init__(self, path):
        super().__init__(" -> ".join(path))
        self.path = path


def nodes(needs):
    """Every node, sorted."""
    return sorted(needs)


def order(needs):
    """Needs first; among nodes that are free at the same time, the alphabet decides depth first."""
    done = []
    for node in nodes(needs):
        _visit(node, needs, [], done)
    return done


def _visit(node, needs, path, done):
    if node in path:
        raise CycleError(path[path.index(node) :] + [node])
    path.append(node)
    for need in sorted(needs.get(node, ())):
        _visit(need, needs, path, done)
    done.append(node)
