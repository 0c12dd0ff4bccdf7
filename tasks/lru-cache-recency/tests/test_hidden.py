import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from lru import LRUCache
from store import PageStore


class TestStore(unittest.TestCase):
    def test_a_read_page_stays(self):
        loaded = []
        store = PageStore(lambda name: loaded.append(name) or name.upper(), 2)
        for name in "abac":
            store.read(name)
        self.assertEqual(store.cached(), ["a", "c"])
        self.assertEqual(store.read("a"), "A")
        self.assertEqual(loaded, ["a", "b", "c"])

    def test_replacing_does_not_evict(self):
        cache = LRUCache(2)
        cache.put("x", 1)
        cache.put("y", 2)
        cache.put("y", 3)
        self.assertIn("x", cache)
        self.assertEqual(cache.get("y"), 3)
        self.assertEqual(len(cache), 2)

    def test_eviction_order(self):
        cache = LRUCache(3)
        for key in "pqr":
            cache.put(key, key)
        cache.get("p")
        cache.put("q", "Q")
        cache.put("s", "s")
        self.assertEqual(cache.keys(), ["p", "q", "s"])

    def test_counts_and_defaults(self):
        cache = LRUCache(1)
        self.assertEqual(cache.get("n", 7), 7)
        cache.put("n", None)
        self.assertIsNone(cache.get("n", 7))
        self.assertEqual((cache.hits, cache.misses), (1, 1))
        self.assertRaises(ValueError, LRUCache, 0)


if __name__ == "__main__":
    unittest.main()
