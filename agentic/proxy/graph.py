"""The token graph of one session: what was sent to the engine and what it sampled, as a tree of deltas.

A node holds only what it adds to its parent. Context nodes hold ids that were encoded (prompts, observations, template
tokens); sampled nodes hold ids, logprobs and policy versions of one generation. This module decides how a request
relates to the tokens held (`plan_*`), then does it (`commit`); it never tokenizes, waits, logs or reads a clock.

Invariants (numbers of docs/architecture.md):
1. The ids sent for a call are the concatenation of the deltas on its path: `prompt_ids(plan)` is nothing else.
2. Ids, logprobs and versions of a sampled node are equally long; a missing logprob is NaN here, never 0.0.
3. `trajectories` gives each delivered sampled node its loss once, however many paths share it.
6. Versions never decrease within a node.

Only the event loop commits. Planning may read in a thread meanwhile: a node's ids are whole before anything points to
it, and what `path_ids` keeps is replaced whole and never changed.
"""

import math
import operator
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeGuard

from .models import Trajectory

NOT_SAMPLED = -1
"""Version of a token that no policy sampled."""


class Relation(StrEnum):
    """How a request relates to the tokens held."""

    NEW_ROOT = "new root"
    """No held token is reused."""
    EXTEND = "extend"
    """It goes on where a path ends."""
    FORK = "fork"
    """It goes on from a place from which another path already goes on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a call attaches and which context it adds; stays valid while other calls commit."""

    relation: Relation
    anchor: int | None
    """Node whose path is reused whole; None for a new root."""
    context: tuple[int, ...]
    """New ids after the anchor, up to where sampling starts."""
    first_prompt: int
    """Tokens of the path's first prompt."""
    total: int
    """Tokens sent: the anchor's path plus `context`."""


def are_finite(logprobs: Sequence[float | None]) -> TypeGuard[Sequence[float]]:
    """Whether each is a number that says something."""
    return None not in logprobs and all(map(math.isfinite, logprobs))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Generation:
    """What one engine call sampled; lists are equally long."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int, ...]

    def problem(self) -> str | None:
        """Why this is not a faithful capture, or None."""
        if not len(self.ids) == len(self.logprobs) == len(self.versions):
            return f"{len(self.ids)} ids, {len(self.logprobs)} logprobs and {len(self.versions)} versions"
        if not are_finite(self.logprobs):
            return "a sampled token has no finite logprob"
        if any(map(operator.lt, self.versions[1:], self.versions)):
            return "policy versions decrease within a generation"
        return None


@dataclass(slots=True)
class Node:
    """One delta."""

    parent: int | None
    ids: "array[int]"
    sampled: bool
    end: int
    """Tokens on the path up to and with this node."""
    first_prompt: int
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    versions: "array[int]" = field(default_factory=lambda: array("I"))
    delivered: bool = False
    children: list[int] = field(default_factory=list)


class TokenGraph:
    """A forest of nodes, appended to and never changed but for the delivered mark."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._roots: list[int] = []
        self._latest: tuple[int | None, array[int]] = (None, array("I"))
        """The path that was last asked for, and its ids: the next one mostly goes on from there."""

    def path(self, node: int | None) -> list[int]:
        """Node numbers from the root to `node`."""
        numbers = []
        while node is not None:
            numbers.append(node)
            node = self.nodes[node].parent
        return numbers[::-1]

    def path_ids(self, node: int | None) -> "array[int]":
        """All ids from the root to the end of `node`; not to be changed."""
        known, held = self._latest
        new: list[int] = []
        place = node
        while place is not None and place != known:
            new.append(place)
            place = self.nodes[place].parent
        if place is not None and not new:
            return held
        ids = held[:] if place is not None else array("I")
        for number in reversed(new):
            ids.extend(self.nodes[number].ids)
        self._latest = (node, ids)
        return ids

    def prompt_ids(self, plan: Plan) -> "array[int]":
        """The ids to send for a planned call."""
        return self.path_ids(plan.anchor) + array("I", plan.context)

    def plan_suffix(self, anchor: int, suffix: Sequence[int]) -> Plan:
        """A call that continues the path of `anchor` by `suffix`."""
        node = self.nodes[anchor]
        relation = Relation.FORK if node.children else Relation.EXTEND
        return Plan(relation, anchor, tuple(suffix), node.first_prompt, node.end + len(suffix))

    def plan_render(self, ids: Sequence[int], lead: int) -> Plan:
        """A call whose prompt was encoded from scratch: reuse the held nodes that it starts with.

        `lead` is how many of the ids form the first prompt if none are reused.
        """
        anchor, matched = self._longest_match(ids)
        if anchor is None:
            return Plan(Relation.NEW_ROOT, None, tuple(ids), lead, len(ids))
        return self.plan_suffix(anchor, ids[matched:])

    def commit(self, plan: Plan, generation: Generation, delivered: bool) -> int:
        """Append the planned context (shared with an equal sibling) and the generation; gives the sampled node."""
        parent = plan.anchor
        parts = (
            [plan.context]
            if parent is not None
            else [plan.context[: plan.first_prompt], plan.context[plan.first_prompt :]]
        )
        for part in parts:
            if part:
                parent = self._context_node(parent, array("I", part), plan.first_prompt)
        node = self._append(parent, array("I", generation.ids), plan.first_prompt, sampled=True)
        held = self.nodes[node]
        held.logprobs = array("f", [math.nan if logprob is None else logprob for logprob in generation.logprobs])
        held.versions = array("I", generation.versions)
        held.delivered = delivered
        return node

    def mark_delivered(self, node: int, delivered: bool) -> None:
        """Say whether a client received the generation of `node`."""
        self.nodes[node].delivered = delivered

    def last_version(self) -> int:
        """The highest version of any token; NOT_SAMPLED if there is none."""
        return max((node.versions[-1] for node in self.nodes if node.versions), default=NOT_SAMPLED)

    def count_held(self) -> int:
        """Tokens of all nodes."""
        return sum(len(node.ids) for node in self.nodes)

    def count_sampled(self) -> tuple[int, int]:
        """Sampled tokens: all, and those that no client received."""
        sampled = [node for node in self.nodes if node.sampled]
        return sum(len(n.ids) for n in sampled), sum(len(n.ids) for n in sampled if not n.delivered)

    def trajectories(self, with_loss: bool) -> list[Trajectory]:
        """Every path to a leaf, oldest leaf first; a shared node has its loss in the first path through it."""
        spent: set[int] = set()
        found = []
        for leaf, node in enumerate(self.nodes):
            if not node.children:
                found.append(self._trajectory(self.path(leaf), spent, with_loss))
        return found

    def describe(self) -> str:
        """The tree for a human, one node a line."""
        return "\n".join(line for root in self._roots for line in self._lines(root, 0))

    def _trajectory(self, path: list[int], spent: set[int], with_loss: bool) -> Trajectory:
        prompt, *rest = path
        out = Trajectory(
            prompt_ids=self.nodes[prompt].ids.tolist(),
            response_ids=[],
            response_mask=[],
            response_logprobs=[],
            versions=[],
        )
        for number in rest:
            node = self.nodes[number]
            trains = with_loss and node.sampled and node.delivered and number not in spent
            if trains:
                spent.add(number)
            count = len(node.ids)
            out.response_ids.extend(node.ids)
            out.response_mask.extend([int(trains)] * count)
            out.response_logprobs.extend(node.logprobs if trains else [0.0] * count)
            out.versions.extend(node.versions if node.sampled else [NOT_SAMPLED] * count)
        return out

    def _longest_match(self, ids: Sequence[int]) -> tuple[int | None, int]:
        anchor: int | None = None
        matched = 0
        wanted = array("I", ids)
        while True:
            numbers = self._roots if anchor is None else self.nodes[anchor].children
            fitting = [n for n in numbers if self._fits(self.nodes[n].ids, wanted, matched)]
            if not fitting:
                return anchor, matched
            anchor = max(fitting, key=lambda n: len(self.nodes[n].ids))
            matched = self.nodes[anchor].end

    @staticmethod
    def _fits(ids: "array[int]", wanted: "array[int]", start: int) -> bool:
        return wanted[start : start + len(ids)] == ids

    def _context_node(self, parent: int | None, ids: "array[int]", first_prompt: int) -> int:
        siblings = self._roots if parent is None else self.nodes[parent].children
        for number in siblings:
            node = self.nodes[number]
            if not node.sampled and node.ids == ids:
                return number
        return self._append(parent, ids, first_prompt, sampled=False)

    def _append(self, parent: int | None, ids: "array[int]", first_prompt: int, sampled: bool) -> int:
        start = 0 if parent is None else self.nodes[parent].end
        number = len(self.nodes)
        self.nodes.append(Node(parent, ids, sampled, start + len(ids), first_prompt))
        (self._roots if parent is None else self.nodes[parent].children).append(number)
        return number

    def _lines(self, number: int, depth: int) -> Iterator[str]:
        node = self.nodes[number]
        kind = ("sampled" if node.delivered else "sampled, undelivered") if node.sampled else "context"
        yield f"{'  ' * depth}[{number}] {kind}: {node.ids.tolist()}"
        for child in node.children:
            yield from self._lines(child, depth + 1)
