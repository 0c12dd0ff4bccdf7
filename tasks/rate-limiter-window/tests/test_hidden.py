import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from clock import ManualClock
from limiter import RateLimiter


class TestLimiter(unittest.TestCase):
    def setUp(self):
        self.clock = ManualClock()
        self.limiter = RateLimiter(2, 10, self.clock)

    def test_the_limit_holds_for_each_key(self):
        self.assertEqual([self.limiter.allow("a") for _ in range(3)], [True, True, False])
        self.assertTrue(self.limiter.allow("b"))

    def test_the_window_is_half_open(self):
        self.limiter.allow("a")
        self.limiter.allow("a")
        self.clock.advance(9.5)
        self.assertFalse(self.limiter.allow("a"))
        self.clock.advance(0.5)
        self.assertTrue(self.limiter.allow("a"))

    def test_refused_calls_cost_nothing(self):
        for _ in range(20):
            self.limiter.allow("a")
            self.clock.advance(1)
        allowed = 0
        for _ in range(20):
            allowed += self.limiter.allow("a")
            self.clock.advance(1)
        self.assertEqual(allowed, 4)

    def test_retry_after(self):
        self.assertEqual(self.limiter.retry_after("a"), 0)
        self.limiter.allow("a")
        self.clock.advance(4)
        self.limiter.allow("a")
        self.assertEqual(self.limiter.retry_after("a"), 6)
        self.assertEqual(self.limiter.remaining("a"), 0)
        self.clock.advance(6)
        self.assertEqual(self.limiter.retry_after("a"), 0)
        self.assertTrue(self.limiter.allow("a"))
        self.assertEqual(self.limiter.retry_after("a"), 4)


if __name__ == "__main__":
    unittest.main()
