"""Why an image cannot be named, found or built.

PermanentError
├── DockerfileError          an instruction that we don't support, or one that makes no sense: names the line
├── ImageBuildError          a supported instruction failed: COPY found nothing, RUN ended with an error
├── ImageNameError           no engine would take that name
├── RegistryRefusedError     401, 403, or no such credentials: names the host and what to set
├── RegistryAnswerError      what answers there is no registry, or no image
├── RegistryTlsError         its certificate is not trusted, or it speaks no TLS
└── BuilderRefusedError      BuildKit, or what runs its client, can never work as it is set
TransientError
├── RegistryUnavailableError no usable answer for longer than we are willing to wait
├── RateLimitedError         the registry lets nobody in for longer than we are willing to wait
└── BuilderUnavailableError  BuildKit cannot be reached from where builds are started
"""

from agentic.errors import PermanentError, TransientError


class DockerfileError(PermanentError):
    """The Dockerfile cannot be read as it is."""


class ImageBuildError(PermanentError):
    """An instruction failed."""


class ImageNameError(PermanentError):
    """A name that no engine takes."""


class RegistryRefusedError(PermanentError):
    """The registry does not let us see the image."""


class RegistryAnswerError(PermanentError):
    """The answer is none of a registry."""


class RegistryTlsError(PermanentError):
    """No connection that can be trusted."""


class BuilderRefusedError(PermanentError):
    """The builder cannot work as it is set."""


class RegistryUnavailableError(TransientError):
    """The registry gave no usable answer."""


class RateLimitedError(TransientError):
    """The registry wants us to come back later."""


class BuilderUnavailableError(TransientError):
    """BuildKit does not answer."""
