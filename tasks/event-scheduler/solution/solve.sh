#!/bin/sh
set -e
cd "${APP:-/app}"
python3 - <<'PY'
from pathlib import Path


def replace(name, old, new):
    path = Path(name)
    text = path.read_text()
    assert text.count(old) == 1, name
    path.write_text(text.replace(old, new))


replace(
    'scheduler.py',
    r'''import heapq
''',
    r'''import heapq
import itertools
''',
)
replace(
    'scheduler.py',
    r'''        self._queue = []

    def''',
    r'''        self._queue = []
        self._numbers = itertools.count()

    def''',
)
replace(
    'scheduler.py',
    r'''        return len(self._queue)
''',
    r'''        return sum(not event.cancelled for _, _, event in self._queue)
''',
)
replace(
    'scheduler.py',
    r'''(self._queue, (when, event))''',
    r'''(self._queue, (when, next(self._numbers), event))''',
)
replace(
    'scheduler.py',
    r'''        due = []
        while self._queue and self._queue[0][0] <= end:
            due.append(heapq.heappop(self._queue))
        for when, event in due:
            self.now = when
            event.callback()
''',
    r'''        while self._queue and self._queue[0][0] <= end:
            when, _, event = heapq.heappop(self._queue)
            if not event.cancelled:
                self.now = when
                event.callback()
''',
)
replace(
    'periodic.py',
    r'''        self._event = scheduler.after(interval, self._run)

    def _run(self):
        self._callback()
        self._event = self._scheduler.after(self._interval, self._run)
''',
    r'''        self._next = scheduler.now + interval
        self._stopped = False
        self._event = scheduler.at(self._next, self._run)

    def _run(self):
        self._callback()
        self._next += self._interval
        if not self._stopped:
            self._event = self._scheduler.at(self._next, self._run)
''',
)
replace(
    'periodic.py',
    r'''        self._event.cancel()''',
    r'''        self._stopped = True
        self._event.cancel()''',
)
PY
