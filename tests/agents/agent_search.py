"""Looks through a sandbox between an agent's end and its grading: what is left of the key, and what still runs."""

from contextvars import ContextVar
from dataclasses import dataclass, field

from agentic.rollout.agents.environment import ToolsEnvironment

_WALK = (
    "grep -rlsF -f - / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=python --exclude-dir=agents"
)
_RUNS = (
    'for p in /proc/[0-9]*; do [ "$p" = /proc/$$ ] || tr "\\0" " " <$p/cmdline; echo; done; tail -n +3 /proc/net/dev'
)


@dataclass
class Search:
    """What to look for, and what was found."""

    key: str = ""
    files: list[str] = field(default_factory=list)
    """Files that hold the key."""
    alive: str = ""
    """Command lines of processes, one a line, then the network's devices."""


SEARCH: ContextVar[Search] = ContextVar("search")


class SearchedEnvironment(ToolsEnvironment):
    """Searched by root, with the key on no command line."""

    async def renew(self) -> None:
        search = SEARCH.get()
        found = await self.run(["sh", "-c", _WALK], stdin=search.key.encode())
        assert found.exit_code in (0, 1, 2), found.error_text  # 1: nothing found; 2: and something went away meanwhile
        search.files += found.text.split()
        search.alive = (await self.run(["sh", "-c", _RUNS])).text
        await super().renew()
