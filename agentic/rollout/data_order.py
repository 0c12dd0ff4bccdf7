"""The order in which verl comes to the rows of its training data, known before it does.

verl's `RandomSampler` draws a permutation of all rows for each epoch from one generator of torch, which `data.seed`
starts, and takes as many whole batches as it gives; what is left of it is not used in that epoch. The same numbers come
from numpy's frozen generator of that kind, so that whoever only wants to know the order needs no torch. Held against
verl's own sampler and loader by a test.
"""

from collections.abc import Iterator
from itertools import islice

from pydantic import Field

from agentic.settings import Settings

LOOKS_AHEAD_EPOCHS = 3
"""In which nearly every row comes up: those that one epoch leaves out are among the first of few."""


class DataOrder(Settings):
    """How verl goes through its rows, and where it stands."""

    seed: int
    """`data.seed`."""
    batch_rows: int = Field(ge=1)
    """`data.train_batch_size`: rows of a step."""
    steps_done: int = Field(0, ge=0)
    """Steps before the first one that is asked about."""

    def rows(self, count: int) -> list[int]:
        """All of so many rows, each once, by when it is needed first; those that do not come up soon are last."""
        ahead = islice(self._steps(count), LOOKS_AHEAD_EPOCHS * max(count // self.batch_rows, 1))
        return list(dict.fromkeys([*(row for step in ahead for row in step), *range(count)]))

    def _steps(self, count: int) -> Iterator[list[int]]:
        """The rows of each step that is to come; none when there is not one whole batch."""
        per_epoch = count // self.batch_rows
        if not per_epoch:
            return
        epoch, skipped = divmod(self.steps_done, per_epoch)
        for number, rows in enumerate(permutations(count, self.seed)):
            if number >= epoch:
                for step in range(skipped if number == epoch else 0, per_epoch):
                    yield rows[step * self.batch_rows : (step + 1) * self.batch_rows]


def permutations(count: int, seed: int) -> Iterator[list[int]]:
    """What `torch.randperm` gives again and again with one generator of this seed, for fewer than 200 million."""
    import numpy as np

    words = np.random.RandomState(seed & 0xFFFFFFFF)
    while True:
        rows = list(range(count))
        drawn = np.frombuffer(words.bytes(4 * (count - 1)), "<u4").tolist()
        for place, word in enumerate(drawn):
            other = place + word % (count - place)
            rows[place], rows[other] = rows[other], rows[place]
        yield rows
