"""Pages loaded on demand and kept while they are in use."""

from lru import LRUCache

_ABSENT = object()


class PageStore:
    def __init__(self, loader, capacity=16):
        self._loader = loader
        self._cache = LRUCache(capacity)

    def read(self, name):
        page = self._cache.get(name, _ABSENT)
        if page is _ABSENT:
            page = self._loader(name)
            self._cache.put(name, page)
        return page

    def replace(self, name, page):
        self._cache.put(name, page)

    def cached(self):
        return self._cache.keys()
