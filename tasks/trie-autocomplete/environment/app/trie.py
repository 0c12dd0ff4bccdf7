"""Words by their letters."""


class Node:
    def __init__(self):
        self.children = {}
        self.count = 0


class Trie:
    def __init__(self):
        self._root = Node()

    def add(self, word, count=1):
        node = self._root
        for letter in word:
            node = node.children.setdefault(letter, Node())
        node.count += count

    def remove(self, word):
        """Forget a word and the nodes that only it needs; unknown words are ignored."""
        path = [self._root]
        for letter in word:
            if letter not in path[-1].children:
                return
            path.append(path[-1].children[letter])
        for node, letter in zip(reversed(path[:-1]), reversed(word)):
            del node.children[letter]

    def words(self, prefix=""):
        """(word, count) of every word that begins with the prefix, alphabetically."""
        node = self._root
        for letter in prefix:
            if letter not in node.children:
                return []
            node = node.children[letter]
        return list(self._walk(node, prefix))

    def _walk(self, node, word):
        if not node.children:
            yield word, node.count
        for letter, child in sorted(node.children.items()):
            yield from self._walk(child, word + letter)
