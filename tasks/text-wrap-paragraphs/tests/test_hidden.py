import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from layout import fill
from wrapping import wrap


class TestLayout(unittest.TestCase):
    def test_the_width_counts_spaces(self):
        self.assertEqual(wrap("aa bb cc".split(), 5), ["aa bb", "cc"])
        self.assertEqual(wrap("aa bb cc".split(), 4), ["aa", "bb", "cc"])
        self.assertEqual(wrap("aaa b".split(), 4), ["aaa", "b"])

    def test_long_words_are_cut(self):
        self.assertEqual(wrap(["abcdefgh", "x"], 3), ["abc", "def", "gh", "x"])
        self.assertEqual(wrap(["a", "bcdefg"], 3), ["a", "bcd", "efg"])
        self.assertEqual(wrap(["abcdefgh", "x"], 4), ["abcd", "efgh", "x"])

    def test_paragraphs(self):
        self.assertEqual(fill("a b\nc\n\n\n d\n", 3), "a b\nc\n\nd")

    def test_the_indent_counts(self):
        self.assertEqual(fill("aa bb cc", 6, "> "), "> aa\n> bb\n> cc")
        self.assertEqual(fill("aa bb cc", 7, "> "), "> aa bb\n> cc")

    def test_every_line_fits(self):
        text = "the quick brown fox jumps over extraordinarily lazy dogs " * 5
        for width in range(1, 40):
            lines = fill(text, width).splitlines()
            self.assertLessEqual(max(map(len, lines)), width)
            self.assertEqual("".join(lines).replace(" ", ""), text.replace(" ", ""))
            self.assertNotIn("", lines)

    def test_nothing(self):
        self.assertEqual(fill(" \n \n"), "")
        self.assertRaises(ValueError, wrap, ["a"], 0)


if __name__ == "__main__":
    unittest.main()
