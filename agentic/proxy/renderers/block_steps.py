"""What readers of blocks that a marker closes have in common: text in, certain pieces out, one step after another."""

from abc import ABC, abstractmethod

from .calls import CallPiece


class SteppingReader(ABC):
    """Half a `BlockReader`: a reader of one form says what a step is, and what its end leaves."""

    def __init__(self) -> None:
        self._rest = ""
        """Text that no step has taken yet."""
        self._out: list[CallPiece] = []
        self._is_call = False

    @property
    def is_call(self) -> bool:
        """Whether any call was one for certain."""
        return self._is_call

    @property
    def is_closed(self) -> bool:
        """Never: a block is closed by its marker."""
        return False

    @property
    def left(self) -> str:
        """Nothing."""
        return ""

    def feed(self, text: str) -> list[CallPiece]:
        """What is certain after this text too."""
        self._rest += text
        while self._step():
            pass
        return self._given()

    @abstractmethod
    def _step(self) -> bool:
        """Take from the rest what can be taken; whether another step goes on with what is left."""

    def _given(self) -> list[CallPiece]:
        out, self._out = self._out, []
        return out
