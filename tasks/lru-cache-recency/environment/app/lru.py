"""A mapping of bounded size that drops the least recently used entry."""

from collections import OrderedDict


class LRUCache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self._entries = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self):
        return len(self._entries)

    def __contains__(self, key):
        return key in self._entries

    def get(self, key, default=None):
        """Return the value and count it as used now."""
        if key not in self._entries:
            self.misses += 1
            return default
        self.hits += 1
        return self._entries[key]

    def put(self, key, value):
        """Store the value as used now, dropping the oldest entry when there is no room."""
        if len(self._entries) >= self.capacity:
            self._entries.popitem(last=False)
        self._entries[key] = value
        self._entries.move_to_end(key)

    def keys(self):
        """Keys from least to most recently used."""
        return list(self._entries)
