"""What can go wrong with a sandbox, as opposed to inside one.

    TransientError
    ├── SandboxLostError      the sandbox died, or the way to it broke: infra, never an exit code
    │   └── SandboxExhaustedError  what ran in it surely took more memory or disk than its limits: its own doing
    ├── SandboxStartError     it could not be started this time
    └── SandboxTransferError  a file or folder did not get in or out whole
    PermanentError
    ├── ImageMissingError     the root-folder store has no image for this environment: run build_images
    ├── ImageStoreError       the store itself is unusable or damaged
    └── SandboxSetupError     this machine cannot keep the promises that the settings ask for

A command that fails, times out, or is killed by a limit is a result, not an error.
"""

from agentic.errors import PermanentError, TransientError


class SandboxLostError(TransientError):
    """The sandbox died or became unreachable; what ran in it has no result."""


class SandboxExhaustedError(SandboxLostError):
    """The sandbox is lost because what ran in it surely went over its own limits of memory or disk; what may be its
    node's shortage is a plain loss. Where a limit ends only a command, the same is that command's result."""


class SandboxStartError(TransientError):
    """The sandbox could not be started."""


class SandboxTransferError(TransientError):
    """A file or folder could not be copied in or out."""


class ImageMissingError(PermanentError):
    """No image is recorded for this environment."""


class ImageStoreError(PermanentError):
    """The root-folder store cannot be used."""


class SandboxSetupError(PermanentError):
    """The machine lacks something that this provider needs."""
