import os
import sys
import unittest

sys.path.insert(0, os.environ["APP"])

from paths import normalize
from router import breadcrumbs, resolve


class TestPaths(unittest.TestCase):
    def test_normalize(self):
        cases = {
            "/a/./b": "/a/b",
            "/a//b": "/a/b",
            "/a/../b": "/b",
            "/../../a": "/a",
            "/..": "/",
            "/": "/",
            "/a/": "/a/",
            "/a/b/..": "/a/",
            "/a/.": "/a/",
        }
        for path, right in cases.items():
            with self.subTest(path):
                self.assertEqual(normalize(path), right)

    def test_resolve(self):
        self.assertEqual(resolve("/docs/guide", "intro"), "/docs/intro")
        self.assertEqual(resolve("/docs/guide/", "intro"), "/docs/guide/intro")
        self.assertEqual(resolve("/docs/guide", "/about/"), "/about/")
        self.assertEqual(resolve("/docs/a/b", "../c/"), "/docs/c/")
        self.assertEqual(resolve("/docs/", "../../.."), "/")

    def test_queries(self):
        self.assertEqual(resolve("/docs/guide", "?page=2"), "/docs/guide")
        self.assertEqual(resolve("/docs/guide", "x#a?b"), "/docs/x")

    def test_breadcrumbs(self):
        self.assertEqual(breadcrumbs("/a/./b"), ["/", "/a", "/a/b"])


if __name__ == "__main__":
    unittest.main()
