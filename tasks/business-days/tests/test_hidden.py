import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from datetime import date

from holidays import easter, of_year
from workdays import add, between

FRIDAY, MONDAY = date(2024, 3, 1), date(2024, 3, 4)


class TestWorkdays(unittest.TestCase):
    def test_over_a_weekend(self):
        self.assertEqual(add(FRIDAY, 1), MONDAY)
        self.assertEqual(add(FRIDAY, 6), date(2024, 3, 11))

    def test_backwards(self):
        self.assertEqual(add(MONDAY, -1), FRIDAY)
        self.assertEqual(add(date(2024, 3, 13), -8), FRIDAY)

    def test_zero(self):
        self.assertEqual(add(FRIDAY, 0), FRIDAY)
        self.assertEqual(add(date(2024, 3, 2), 0), MONDAY)

    def test_from_a_weekend(self):
        self.assertEqual(add(date(2024, 3, 2), 1), MONDAY)
        self.assertEqual(add(date(2024, 3, 3), -1), FRIDAY)

    def test_easter(self):
        self.assertEqual(easter(2024), date(2024, 3, 31))
        self.assertEqual(add(date(2024, 3, 28), 1, of_year(2024)), date(2024, 4, 2))
        self.assertEqual(add(date(2024, 4, 2), -1, of_year(2024)), date(2024, 3, 28))

    def test_between(self):
        self.assertEqual(between(FRIDAY, date(2024, 3, 8)), 5)
        self.assertEqual(between(date(2024, 3, 8), FRIDAY), -5)
        self.assertEqual(between(date(2024, 3, 28), date(2024, 4, 3), of_year(2024)), 2)
        self.assertEqual(between(FRIDAY, FRIDAY), 0)


if __name__ == "__main__":
    unittest.main()
