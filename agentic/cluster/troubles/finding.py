"""Looks for every sign in everything that was observed, and says each trouble once for each thing it is about."""

from collections.abc import Iterator, Mapping, Sequence

from agentic.cluster.errors import one_line
from agentic.cluster.troubles.catalogue import CATALOGUE, LOOK_UP
from agentic.cluster.troubles.kinds import Evidence, Kind, Place, Trouble
from agentic.cluster.troubles.observations import Observation, observe

SCHEDULER = ("Unschedulable", "FailedScheduling")
"""Its message lists what each node lacks, so that it may show several troubles; any other shows one."""


def find_troubles(evidence: Evidence) -> list[Trouble]:
    """What the evidence shows; empty when it shows nothing. Where something exact is known, general words are left
    out."""
    found: dict[tuple[str, str], Observation] = {}
    for observation in observe(evidence):
        for kind in kinds_shown(observation):
            found.setdefault((kind.name, observation.about), observation)
    return [
        make_trouble(name, seen.where, seen.text, remedy=_remedy(CATALOGUE[name], seen.owner))
        for (name, _), seen in _exact(found)
    ]


def _remedy(kind: Kind, owner: str) -> str:
    return kind.remedies.get(owner) or kind.remedies.get(owner.partition(" ")[0]) or kind.remedy


def name_refusal(where: str, answer: str) -> Trouble | None:
    """The trouble that the API server's answer to a request shows, if it shows one."""
    for kind in kinds_shown(Observation(Place.ANSWER, where, where, answer)):
        return make_trouble(kind.name, where, answer)
    return None


def make_trouble(
    name: str, where: str, message: str, *, remedy: str | None = None, transient: bool | None = None
) -> Trouble:
    """A trouble of the catalogue, with the catalogue's words unless better ones are known."""
    kind = CATALOGUE[name]
    return Trouble(
        name, where, one_line(message), remedy or kind.remedy, kind.transient if transient is None else transient
    )


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


def kinds_shown(observation: Observation) -> Iterator[Kind]:
    """One, unless the scheduler lists what several nodes lack."""
    shown = (kind for kind in LOOK_UP if _is_shown(kind, observation))
    if observation.text.startswith(SCHEDULER):
        reasons = list(shown)
        yield from [kind for kind in reasons if kind.name != "unschedulable"] or reasons
    elif first := next(shown, None):
        yield first


def _is_shown(kind: Kind, observation: Observation) -> bool:
    return any(observation.place in sign.places and sign.words.search(observation.text) for sign in kind.signs)


def _exact(found: Mapping[tuple[str, str], Observation]) -> Iterator[tuple[tuple[str, str], Observation]]:
    exact = {about for name, about in found if not CATALOGUE[name].is_general}
    for (name, about), observation in found.items():
        if about not in exact or not CATALOGUE[name].is_general:
            yield (name, about), observation
