import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from graph import CycleError, nodes
from plan import affected, build_order

DIAMOND = "app: net ui\nnet: base\nui: base\nbase:\n"


class TestPlan(unittest.TestCase):
    def test_chain(self):
        self.assertEqual(build_order("c: b\nb: a\na:\n"), ["a", "b", "c"])

    def test_diamond(self):
        self.assertEqual(build_order(DIAMOND), ["base", "net", "ui", "app"])

    def test_needs_without_a_line(self):
        self.assertEqual(build_order("app: lib  # vendored\n"), ["lib", "app"])
        self.assertEqual(nodes({"a": {"z"}}), ["a", "z"])

    def test_cycle(self):
        with self.assertRaises(CycleError) as caught:
            build_order("a: b\nb: c\nc: b\n")
        self.assertEqual(caught.exception.path, ["b", "c", "b"])
        self.assertEqual(str(caught.exception), "b -> c -> b")

    def test_self_cycle(self):
        self.assertRaises(CycleError, build_order, "a: a")

    def test_affected(self):
        self.assertEqual(affected(DIAMOND, "net"), ["net", "app"])
        self.assertEqual(affected(DIAMOND, "base"), ["base", "net", "ui", "app"])


if __name__ == "__main__":
    unittest.main()
