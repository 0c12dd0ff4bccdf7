import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from periodic import Periodic
from scheduler import Scheduler


class TestScheduler(unittest.TestCase):
    def setUp(self):
        self.scheduler, self.seen = Scheduler(), []

    def note(self, text):
        return lambda: self.seen.append((self.scheduler.now, text))

    def test_order(self):
        for when, text in ((2, "b"), (1, "a"), (2, "c"), (2, "d")):
            self.scheduler.at(when, self.note(text))
        self.scheduler.run_until(2)
        self.assertEqual(self.seen, [(1, "a"), (2, "b"), (2, "c"), (2, "d")])
        self.assertEqual(self.scheduler.now, 2)

    def test_cancel(self):
        event = self.scheduler.at(1, self.note("x"))
        self.scheduler.at(1, self.note("y"))
        event.cancel()
        self.assertEqual(len(self.scheduler), 1)
        self.scheduler.run_until(5)
        self.assertEqual(self.seen, [(1, "y")])
        self.assertEqual(len(self.scheduler), 0)

    def test_cancel_during_the_run(self):
        later = self.scheduler.at(2, self.note("never"))
        self.scheduler.at(1, later.cancel)
        self.scheduler.run_until(3)
        self.assertEqual(self.seen, [])

    def test_scheduling_during_the_run(self):
        self.scheduler.at(1, lambda: self.scheduler.after(0, self.note("now")))
        self.scheduler.at(2, self.note("then"))
        self.scheduler.run_until(2)
        self.assertEqual(self.seen, [(1, "now"), (2, "then")])

    def test_periodic(self):
        periodic = Periodic(self.scheduler, 3, self.note("p"))
        self.scheduler.run_until(10)
        self.assertEqual(self.seen, [(3, "p"), (6, "p"), (9, "p")])
        periodic.stop()
        self.scheduler.run_until(20)
        self.assertEqual(len(self.seen), 3)

    def test_periodic_does_not_drift_and_stops_from_within(self):
        def slow():
            self.seen.append(self.scheduler.now)
            self.scheduler.now += 1
            if len(self.seen) == 3:
                periodic.stop()

        periodic = Periodic(self.scheduler, 4, slow)
        self.scheduler.run_until(40)
        self.assertEqual(self.seen, [4, 8, 12])

    def test_the_past(self):
        self.scheduler.run_until(3)
        self.assertRaises(ValueError, self.scheduler.at, 2, print)


if __name__ == "__main__":
    unittest.main()
