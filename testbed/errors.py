"""Why there is no cluster: three kinds with an exit code each, so that none of them passes for a failed test.

TestbedError
├── MachineError   the machine lacks something that cannot be installed: 78, change it first
├── BuildError     a tool could not be built: 3
└── StartError     a component did not come up: 75, its log says why
"""


class TestbedError(Exception):
    """Base; the message is one line."""

    __test__ = False
    exit_code = 75


class MachineError(TestbedError):
    """No root, no Go, no control groups: trying again cannot help."""

    exit_code = 78


class BuildError(TestbedError):
    """A Go module did not download or compile."""

    exit_code = 3


class StartError(TestbedError):
    """A process ended, or was not ready in time."""
