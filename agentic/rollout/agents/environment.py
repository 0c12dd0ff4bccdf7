"""The sandbox of Harbor's agents: shows their prebaked tools, and keeps the folders that they write their logs to.

Which folder of the machine that is, is known where the trial runs; a trial's plan names the agent's tools alone.
"""

from typing import Any

from agentic.rollout.agents.tools import shown_folders
from agentic.rollout.environment import FreshlyGradedEnvironment


class ToolsEnvironment(FreshlyGradedEnvironment):
    """Raises ToolsError when the tools have not been made on this machine and the image is no registry's."""

    def __init__(self, *arguments: Any, tools: str | None = None, **keywords: Any) -> None:
        super().__init__(*arguments, folders=shown_folders(tools) if tools else {}, **keywords)
