"""Why an image cannot be built.

PermanentError
├── DockerfileError   an instruction that we don't support, or one that makes no sense: names the line
└── ImageBuildError   a supported instruction failed: COPY found nothing, RUN ended with an error
"""

from agentic.errors import PermanentError


class DockerfileError(PermanentError):
    """The Dockerfile cannot be read as it is."""


class ImageBuildError(PermanentError):
    """An instruction failed."""
