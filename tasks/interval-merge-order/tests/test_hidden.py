import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from calendar_days import busy, free, load
from intervals import gaps, merge


def meetings(*pairs):
    return [{"start": start, "end": end} for start, end in pairs]


class TestIntervals(unittest.TestCase):
    def test_unsorted(self):
        self.assertEqual(busy(meetings((700, 730), (600, 630), (620, 640))), [(600, 640), (700, 730)])

    def test_nested(self):
        self.assertEqual(merge([(0, 10), (2, 3), (4, 12)]), [(0, 12)])
        self.assertEqual(load(meetings((0, 10), (2, 3))), 10)

    def test_touching(self):
        self.assertEqual(merge([(1, 2), (2, 3), (5, 6)]), [(1, 3), (5, 6)])

    def test_empty(self):
        self.assertEqual(merge([]), [])
        self.assertEqual(merge([(3, 3), (1, 2)]), [(1, 2)])
        self.assertRaises(ValueError, merge, [(2, 1)])

    def test_free(self):
        self.assertEqual(free(meetings((600, 700), (500, 560))), [(560, 600), (700, 1020)])
        self.assertEqual(free(meetings((0, 2000))), [])
        self.assertEqual(free([]), [(540, 1020)])
        self.assertEqual(gaps([(0, 5), (9, 20)], 3, 12), [(5, 9)])


if __name__ == "__main__":
    unittest.main()
