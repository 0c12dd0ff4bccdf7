"""Looks for every sign in everything that was observed, and says each trouble once for each place."""

from collections.abc import Iterator, Sequence

from agentic.cluster.errors import one_line
from agentic.cluster.troubles.catalogue import CATALOGUE
from agentic.cluster.troubles.kinds import Evidence, Trouble
from agentic.cluster.troubles.observations import Observation, observe
from agentic.cluster.troubles.signs import SIGNS


def find_troubles(evidence: Evidence) -> list[Trouble]:
    """What the evidence shows; empty when it shows nothing. Of what says the same, the most exact is kept."""
    found: dict[tuple[str, str], Observation] = {}
    for observation in observe(evidence):
        name = _name_of(observation)
        if name is not None:
            found.setdefault((name, observation.about), observation)
    return [make_trouble(name, seen.where, seen.text) for (name, _), seen in _exact(found)]


def make_trouble(name: str, where: str, message: str, remedy: str = "") -> Trouble:
    """A trouble of the catalogue; its own remedy unless one that knows more is given."""
    kind = CATALOGUE[name]
    return Trouble(name, where, one_line(message), remedy or kind.remedy, kind.transient)


def grouped(troubles: Sequence[Trouble]) -> list[Trouble]:
    """The same trouble with the same words at many places, said once."""
    places: dict[tuple[str, str, str], list[Trouble]] = {}
    for trouble in troubles:
        places.setdefault((trouble.name, trouble.message, trouble.remedy), []).append(trouble)
    return [_together(same) for same in places.values()]


def _together(same: Sequence[Trouble]) -> Trouble:
    first = same[0]
    if len(same) == 1:
        return first
    return Trouble(first.name, f"{first.where} and {len(same) - 1} more", first.message, first.remedy, first.transient)


def _name_of(observation: Observation) -> str | None:
    for sign in SIGNS:
        if observation.place in sign.places and sign.words.search(observation.text):
            return sign.name
    return None


def _exact(found: dict[tuple[str, str], Observation]) -> Iterator[tuple[tuple[str, str], Observation]]:
    for (name, about), observation in found.items():
        if not any((exact, about) in found for exact in CATALOGUE[name].general_of):
            yield (name, about), observation
