import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from calculator import calculate


class TestCalculator(unittest.TestCase):
    def check(self, cases):
        for text, value in cases.items():
            with self.subTest(text):
                self.assertAlmostEqual(calculate(text), value)

    def test_left_to_right(self):
        self.check({"10 - 4 - 3": 3, "100 / 5 / 2": 10, "1 - 2 + 3": 2, "8 / 4 * 2": 4})

    def test_precedence(self):
        self.check({"2 * 3 + 4": 10, "2 + 3 * 4": 14, "2 * 3 ** 2": 18, "1 + 6 / 3 - 2": 1})

    def test_powers(self):
        self.check({"2 ** 3 ** 2": 512, "(2 ** 3) ** 2": 64, "2 ** -1": 0.5})

    def test_signs(self):
        self.check({"-2 ** 2": -4, "(-2) ** 2": 4, "-(1 + 2)": -3, "3 - -2": 5, "+4": 4, "--1": 1, "2 * -3": -6})

    def test_parentheses(self):
        self.check({"(1 + 2) * (3 + 4)": 21, "((7))": 7, "1.5 * (2)": 3})

    def test_errors(self):
        for text in ("", "1 +", "(1", "1)", "1 2", "a", "* 3"):
            with self.subTest(text):
                self.assertRaises(ValueError, calculate, text)


if __name__ == "__main__":
    unittest.main()
