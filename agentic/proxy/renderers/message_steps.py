"""What readers of replies that are messages have in common: text in, certain deltas out, one step after another."""

from abc import ABC, abstractmethod

from ..conversation import ReplyDelta
from .reply import merged


class MessageReader(ABC):
    """Reads one reply piece by piece; a form's own reader says what a step is."""

    def __init__(self) -> None:
        self._rest = ""
        """Text that no step has taken yet."""
        self._out: list[ReplyDelta] = []
        self._count = 0
        """Calls so far."""

    def feed(self, text: str) -> list[ReplyDelta]:
        """What is certain after this text too."""
        return self._run(text, is_end=False)

    def finish(self) -> list[ReplyDelta]:
        """The rest."""
        return self._run("", is_end=True)

    def _run(self, text: str, is_end: bool) -> list[ReplyDelta]:
        self._rest += text
        while self._step(is_end):
            pass
        out, self._out = self._out, []
        return merged(out)

    @abstractmethod
    def _step(self, is_end: bool) -> bool:
        """Take from the rest what can be taken; whether another step goes on with what is left."""
