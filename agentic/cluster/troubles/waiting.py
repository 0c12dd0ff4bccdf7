"""Kubelet's reasons why a container waits: what each means, whether it is about the image, whether kubelet's own tries
mend it. The one place that knows them, for Ray's pods, image builds and sandboxes alike."""

from agentic.cluster.troubles.finding import kinds_shown
from agentic.cluster.troubles.kinds import Kind, Place
from agentic.cluster.troubles.observations import Observation

ABOUT_IMAGES = frozenset(
    {
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImagePullBackOff",
        "ErrImagePull",
        "RegistryUnavailable",
        "ImageInspectError",
        "SignatureValidationFailed",
    }
)
HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})
"""Those that no try of kubelet mends."""


def kind_of_waiting(reason: str, message: str) -> Kind | None:
    """The trouble that a waiting container is in; None while it is only being made."""
    shown = kinds_shown(Observation(Place.WAITING, "", "", f"{reason}: {message}"))
    return next(iter(shown), None)
