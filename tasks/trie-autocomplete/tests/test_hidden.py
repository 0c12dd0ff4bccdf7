import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from search import Suggester
from trie import Trie


class TestSuggester(unittest.TestCase):
    def test_prefix_words(self):
        self.assertEqual(Suggester(["car", "cart", "care"]).suggest("car"), ["car", "care", "cart"])

    def test_most_used_first(self):
        self.assertEqual(Suggester(["bb", "ba", "bb", "bc", "bc"]).suggest("b", 2), ["bb", "bc"])

    def test_case_and_blanks(self):
        self.assertEqual(Suggester([" Tea ", "", "TEAM"]).suggest(" tE"), ["tea", "team"])

    def test_forget(self):
        suggester = Suggester(["car", "cart", "cat"])
        suggester.forget("car")
        self.assertEqual(suggester.suggest("c"), ["cart", "cat"])
        suggester.forget("Cart")
        suggester.forget("ca")
        suggester.forget("dog")
        self.assertEqual(suggester.suggest("c"), ["cat"])
        suggester.forget("cat")
        self.assertEqual(suggester.suggest(""), [])

    def test_removal_frees_nodes(self):
        trie = Trie()
        trie.add("abc")
        trie.add("ab")
        trie.remove("abc")
        self.assertEqual(trie.words(), [("ab", 1)])
        self.assertEqual(trie.words("abc"), [])
        trie.remove("ab")
        self.assertEqual(trie._root.children, {})


if __name__ == "__main__":
    unittest.main()
