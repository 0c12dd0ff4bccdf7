"""The sandbox of Harbor's agents: shows their prebaked tools, and keeps the folders that they write their logs to.

Which folder of the machine that is, is known where the trial runs; a trial's plan names the agent's tools alone.
"""

from typing import Any, override

from agentic.rollout.agents.tools import shown_folders
from agentic.rollout.environment import FreshlyGradedEnvironment
from agentic.rollout.errors import ToolsError
from agentic.sandbox.rootfs import Rootfs


class ToolsEnvironment(FreshlyGradedEnvironment):
    """One trial's sandbox, for an agent with tools or without."""

    def __init__(self, *arguments: Any, tools: str | None = None, **keywords: Any) -> None:
        super().__init__(*arguments, folders=shown_folders(tools) if tools else {}, **keywords)
        self._tools = tools

    @override
    async def start(self, force_build: bool) -> None:
        """Raises ToolsError when the tools have not been made on this machine and the image is no registry's."""
        missing = [str(folder) for folder in self._folders if not folder.is_dir()]
        if missing and isinstance(self._find_image(), Rootfs):
            raise ToolsError(
                f"agent {self._tools} needs its tools at {missing[0]}: run 'python -m agentic.rollout.agents install "
                f"{self._tools}' on the machine that runs the trials"
            )
        await super().start(force_build)
