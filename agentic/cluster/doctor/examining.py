"""Runs the checks, one after the other, and keeps going."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.facts import Facts
from agentic.cluster.errors import ApiUnavailableError, CredentialsError, ForbiddenError
from agentic.cluster.troubles import Trouble, grouped, make_trouble, name_refusal
from agentic.errors import AgenticError, PermanentError

NO_ANSWER = "the API server does not answer"
"""Why a check was skipped that needs the API server."""
NO_LOGIN = "no usable credentials"
"""How `agentic.cluster.credentials` says that there is no cluster to ask."""

type Look = Callable[[KubeClient, Facts], Awaitable[list[Trouble]]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at."""

    name: str
    """For people, such as `rights`."""
    look: Look | None
    """None: it cannot be seen from here."""
    not_seen: str = ""
    """Who sees it then."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a check."""

    name: str
    troubles: tuple[Trouble, ...]
    skipped: str = ""
    """Why it could not be done; empty when it was."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of all of them."""

    checks: tuple[Checked, ...]

    @property
    def troubles(self) -> list[Trouble]:
        return grouped([trouble for checked in self.checks for trouble in checked.troubles])

    @property
    def skipped(self) -> dict[str, str]:
        """Name of a check to the reason why it was not done."""
        return {checked.name: checked.skipped for checked in self.checks if checked.skipped}


async def examine(
    client: KubeClient,
    facts: Facts,
    checks: Sequence[Check],
    on_checked: Callable[[Checked], None] = lambda checked: None,
) -> Report:
    """All checks in their order; `on_checked` hears of each as it ends. A cluster that does not answer at all is the
    one thing that keeps the rest from being looked at."""
    done: list[Checked] = []
    for check in checks:
        is_dead = any(trouble.name in ("cluster-unreachable", "credentials-refused") for trouble in _found(done))
        checked = Checked(check.name, (), NO_ANSWER) if is_dead else await _check(check, client, facts)
        done.append(checked)
        on_checked(checked)
    return Report(tuple(done))


def _found(done: Sequence[Checked]) -> list[Trouble]:
    return [trouble for checked in done for trouble in checked.troubles]


async def _check(check: Check, client: KubeClient, facts: Facts) -> Checked:
    if check.look is None:
        return Checked(check.name, (), check.not_seen)
    try:
        return Checked(check.name, tuple(await check.look(client, facts)))
    except ForbiddenError as error:
        return Checked(check.name, (), str(error))
    except AgenticError as error:
        return Checked(check.name, (name_error(f"namespace {client.namespace}", error),))


def name_error(where: str, error: AgenticError) -> Trouble:
    """The trouble that a refusal or a silence of the API server is."""
    named = name_refusal(where, str(error))
    if named is not None:
        return named
    if isinstance(error, CredentialsError) and NO_LOGIN in str(error):
        return make_trouble("cluster-unreachable", where, str(error), transient=False)
    if isinstance(error, CredentialsError):
        return make_trouble("credentials-refused", where, str(error))
    if isinstance(error, ApiUnavailableError):
        return make_trouble("cluster-unreachable", where, str(error))
    is_transient = not isinstance(error, PermanentError)
    return make_trouble("object-refused", where, str(error), transient=is_transient)


async def if_allowed[T](asked: Awaitable[T]) -> T | None:
    """The answer, or None when the account may not have it: then what depends on it is not judged."""
    try:
        return await asked
    except ForbiddenError:
        return None
