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
    'calculator.py',
    r'''    def expression(self):
        left = self.atom()
        if self.peek() in OPERATIONS:
            operation = OPERATIONS[self.take()]
            return operation(left, self.expression())
        return left
''',
    r'''    def expression(self):
        return self.left_to_right(("+", "-"), self.term)

    def term(self):
        return self.left_to_right(("*", "/"), self.signed)

    def left_to_right(self, symbols, operand):
        left = operand()
        while self.peek() in symbols:
            operation = OPERATIONS[self.take()]
            left = operation(left, operand())
        return left

    def signed(self):
        if self.peek() in ("+", "-"):
            return self.signed() if self.take() == "+" else -self.signed()
        return self.power()

    def power(self):
        base = self.atom()
        if self.peek() == "**":
            self.take()
            return base ** self.signed()
        return base
''',
)
PY
