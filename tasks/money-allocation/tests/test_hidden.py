import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from ledger import allocate, balances, split
from money import parse, show


class TestLedger(unittest.TestCase):
    def test_no_cent_is_lost(self):
        self.assertEqual(split("10.00", [1, 1, 1]), ["3.34", "3.33", "3.33"])
        self.assertEqual(split("0.05", [1, 1]), ["0.03", "0.02"])
        for cents in range(-50, 50):
            for weights in ([1, 2, 3], [5, 0, 7], [1, 1, 1, 1, 1, 1, 1]):
                self.assertEqual(sum(allocate(cents, weights)), cents)

    def test_largest_remainder_first(self):
        self.assertEqual(allocate(100, [1, 1, 4]), [17, 17, 66])
        self.assertEqual(allocate(10, [3, 3, 1]), [4, 4, 2])
        self.assertEqual(allocate(7, [0, 1, 1]), [0, 4, 3])

    def test_large_amounts_stay_exact(self):
        self.assertEqual(allocate(10**18 + 1, [1, 1]), [5 * 10**17 + 1, 5 * 10**17])

    def test_negative(self):
        self.assertEqual(split("-10.00", [1, 1, 1]), ["-3.34", "-3.33", "-3.33"])

    def test_parse(self):
        self.assertEqual(parse("12.5"), 1250)
        self.assertEqual(parse("-0.01"), -1)
        for text in ("1.005", "x", "", "NaN", "1e-3"):
            with self.subTest(text):
                self.assertRaises(ValueError, parse, text)
        self.assertEqual(show(-5), "-0.05")

    def test_balances(self):
        self.assertEqual(balances({"b": "10", "a": "0", "c": "0"}), {"a": "-3.34", "b": "6.67", "c": "-3.33"})
        self.assertRaises(ValueError, allocate, 5, [])
        self.assertRaises(ValueError, allocate, 5, [0, 0])


if __name__ == "__main__":
    unittest.main()
