"""What the warm start imitates: two demonstrators of the demo's protocol.

Both look at the file, edit it and submit. The careful one first notes what the docstring calls for beside what the line
says, and then writes the right edit. The hasty one edits at once: some form at some place. Which habit pays is left to
reinforcement learning; the demonstrations only make both of them known.
"""

import random
from collections.abc import Sequence

from agentic.models.tiny.tokenizer import Message
from agentic.tasks.mutation.commands import LOOK, numbered, repair_command, repair_of
from agentic.tasks.mutation.forms import PHRASES, Kind, Place, scan_places
from agentic.tasks.mutation.generator import Mutant

SUBMIT = "submit"
NO_OUTPUT = "ok"
"""The observation after a command that printed nothing."""


def demonstrate(mutant: Mutant, rng: random.Random, careful: bool) -> list[Message]:
    """One demonstration as a chat."""
    hole = mutant.wrong
    note = f"{hole.line}: {hole.phrase}, {hole.form.strip()}\n" if careful else ""
    edit = repair_of(hole) if careful else _hasty_edit(mutant, rng)
    return [
        Message("user", mutant.instruction),
        Message("assistant", fenced(LOOK)),
        Message("user", numbered(mutant.source)),
        Message("assistant", note + fenced(edit)),
        Message("user", NO_OUTPUT),
        Message("assistant", fenced(SUBMIT)),
    ]


def fenced(command: str) -> str:
    """A command as the agent of the demo reads it."""
    return f"```bash\n{command}\n```"


def _hasty_edit(mutant: Mutant, rng: random.Random) -> str:
    """Another form at a place that may well be right already."""
    hole = mutant.wrong
    places: Sequence[Place] = [*scan_places(mutant.source), Place(hole.line, hole.kind, hole.form)]
    place = rng.choice(places)
    others = [form for form in PHRASES[place.kind] if form != place.form]
    if place.kind is Kind.GUARD:
        others = list(PHRASES[Kind.GUARD])
    return repair_command(place.line, place.form, rng.choice(others))
