import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from config import load
from reader import ConfigError


class TestConfig(unittest.TestCase):
    def test_sections(self):
        self.assertEqual(load("[a]\nx = 1\n[b]\n[a]\ny=2\n"), {"a": {"x": "1", "y": "2"}, "b": {}})

    def test_values_keep_their_characters(self):
        values = load("[web]\nurl = http://h/?a=1&b=2#top\ncolor = #fff; bold\n")["web"]
        self.assertEqual(values, {"url": "http://h/?a=1&b=2#top", "color": "#fff; bold"})

    def test_comments(self):
        self.assertEqual(load("# x\n  ; y\n[a]\n   # z\nk = v\n"), {"a": {"k": "v"}})

    def test_continuations(self):
        self.assertEqual(
            load("[a]\nk = one\n   two = 2\n\tthree\nm = 4\n"), {"a": {"k": "one two = 2 three", "m": "4"}}
        )

    def test_references(self):
        text = "[a]\nx = ${b.y}/${a.z}\nz = 3\n[b]\ny = <${c.v}>\n[c]\nv = deep\n"
        self.assertEqual(load(text)["a"]["x"], "<deep>/3")

    def test_bad_references(self):
        self.assertRaises(ConfigError, load, "[a]\nx = ${a.y}\ny = ${a.x}\n")
        self.assertRaises(ConfigError, load, "[a]\nx = ${a.x}\n")
        self.assertRaises(ConfigError, load, "[a]\nx = ${b.x}\n")

    def test_bad_lines(self):
        self.assertRaises(ConfigError, load, "x = 1\n")
        self.assertRaises(ConfigError, load, "[a]\nnothing\n")
        self.assertRaises(ConfigError, load, "[a]\n  indented first\n")


if __name__ == "__main__":
    unittest.main()
