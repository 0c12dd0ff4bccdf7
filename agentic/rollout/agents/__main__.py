"""Makes the prebaked tools of agents that run inside a sandbox, once for a machine.

    python -m agentic.rollout.agents install NAME...     all that have tools when no name is given
    python -m agentic.rollout.agents list

`install` prints where each tool's command lies, in the order of the names. Exit code 75 when it may work when tried
again, 78 when something has to be changed by hand.
"""

import argparse
import sys
from collections.abc import Sequence

from agentic.errors import AgenticError, TransientError
from agentic.rollout.agents.install import install
from agentic.rollout.agents.names import AGENTS
from agentic.rollout.agents.tools import TOOLS, SystemTool, host_folder

MAY_PASS, NEEDS_HANDS = 75, 78


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m agentic.rollout.agents", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every agent, its API, where it runs, and its tools")
    making = commands.add_parser("install", help="make the tools of these agents")
    making.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(sorted(TOOLS))}; none is all")
    chosen = parser.parse_args(arguments)
    if chosen.command == "list":
        _list()
        return 0
    try:
        for name in chosen.names or TOOLS:
            sys.stdout.write(f"{install(name)}\n")
    except AgenticError as error:
        sys.stderr.write(f"{error}\n")
        return MAY_PASS if isinstance(error, TransientError) else NEEDS_HANDS
    return 0


def _list() -> None:
    row = "{:<18}{:<11}{:<9}{:<10}{}\n".format
    sys.stdout.write(row("NAME", "API", "RUNS", "VERSION", "TOOLS"))
    for name, agent in AGENTS.items():
        version, tools = _tools(agent.tools)
        sys.stdout.write(row(name, agent.api or "-", "inside" if agent.runs_inside else "outside", version, tools))


def _tools(name: str | None) -> tuple[str, str]:
    if name is None:
        return "-", "-"
    tool = TOOLS[name]
    if isinstance(tool, SystemTool):
        return "-", f"{tool.command} of the image"
    folder = host_folder(name)
    return tool.version, str(folder) if folder.is_dir() else "not installed"


if __name__ == "__main__":
    sys.exit(main())
