"""Failures of settings, rendering, submitting and local runs.

PermanentError
├── SettingsError        an unknown key, a wrong type, an impossible combination
├── DocumentError        the local runner cannot interpret this part of the Workflow
├── CommandError         a command line that names nothing known
├── WorkspaceError       the workspace cannot be written
└── LauncherError        Slurm or SkyPilot is not installed, or refuses what it is given
TransientError
├── RunBusyError         the same run is being executed by another process
└── ClusterUnreachableError   no API server answered
"""

from agentic.errors import PermanentError, TransientError


class SettingsError(PermanentError):
    """The settings do not describe a run."""


class DocumentError(PermanentError):
    """The compiled Workflow holds something that the local runner does not interpret."""


class CommandError(PermanentError):
    """The command line names a verb, run or step that does not exist."""


class WorkspaceError(PermanentError):
    """The workspace is no folder, or not one that this user can write."""


class LauncherError(PermanentError):
    """A launcher cannot be asked, or refuses."""


class RunBusyError(TransientError):
    """Another process executes this run."""


class ClusterUnreachableError(TransientError):
    """No Kubernetes API server can be reached."""
