"""Arithmetic by recursive descent."""

from tokens import tokenize

OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
}


class Parser:
    def __init__(self, text):
        self.tokens = tokenize(text)
        self.position = 0

    def peek(self):
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self):
        token = self.peek()
        self.position += 1
        return token

    def expression(self):
        left = self.atom()
        if self.peek() in OPERATIONS:
            operation = OPERATIONS[self.take()]
            return operation(left, self.expression())
        return left

    def atom(self):
        token = self.take()
        if isinstance(token, float):
            return token
        if token == "(":
            value = self.expression()
            if self.take() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        raise ValueError(f"unexpected {token!r}")


def calculate(text):
    parser = Parser(text)
    value = parser.expression()
    if parser.peek() is not None:
        raise ValueError(f"unexpected {parser.peek()!r}")
    return value
