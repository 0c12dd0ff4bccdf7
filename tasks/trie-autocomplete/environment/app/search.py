"""Completions of what a user types."""

from trie import Trie


class Suggester:
    def __init__(self, words=()):
        self._trie = Trie()
        for word in words:
            self.learn(word)

    def learn(self, word):
        word = word.strip().lower()
        if word:
            self._trie.add(word)

    def forget(self, word):
        self._trie.remove(word.strip().lower())

    def suggest(self, typed, most=5):
        found = self._trie.words(typed)
        found.sort(key=lambda entry: entry[1])
        return [word for word, _ in found[:most]]
