"""Names and labels of what we make in a cluster, derived from run and sandbox, so that a repeat meets itself."""

import hashlib
import re

from agentic.cluster.labels import ROLE_LABEL, RUN_LABEL
from agentic.sandbox.errors import SandboxSetupError
from agentic.sandbox.local.state import SAFE_NAME

OWNER_LABEL = "agentic-rl/owner"
"""Of sandboxes and pools: the lease that they live by."""
SANDBOX_LABEL = "agentic-rl/sandbox"
"""Of a sandbox's objects: the name that its claim or pod was made with."""

READABLE_CHARACTERS = 40
DIGEST_CHARACTERS = 12
CONTAINER = "sandbox"
"""The container that commands run in."""


def object_name(readable: str, *identity: str) -> str:
    """A DNS label that starts like `readable` and is this identity's alone."""
    digest = hashlib.sha256("\0".join([readable, *identity]).encode()).hexdigest()[:DIGEST_CHARACTERS]
    return f"{readable_name(readable, READABLE_CHARACTERS)}-{digest}"


def readable_name(text: str, limit: int = 63) -> str:
    """As much of a text as a DNS label can hold: `astropy__astropy-12907` becomes `astropy-astropy-12907`."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:limit].strip("-")
    return name or "sandbox"


def label_value(text: str) -> str:
    """A run or owner as a label's value: itself where it fits, else as much of it as does, and a digest."""
    if len(text) <= 63 and re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', text)[:READABLE_CHARACTERS].strip('-._') or 'run'}-{digest}"


def require_safe(*names: str) -> None:
    """Refuse run and sandbox ids that other providers would refuse too."""
    for name in names:
        if not SAFE_NAME.fullmatch(name):
            raise SandboxSetupError(f"{name!r} is no run or sandbox id: use letters, digits, '.', '_' and '-'")


def selector(**labels: str) -> str:
    """A label selector; keyword names are those of this module's labels."""
    keys = {"run": RUN_LABEL, "owner": OWNER_LABEL, "sandbox": SANDBOX_LABEL, "role": ROLE_LABEL}
    return ",".join(f"{keys[name]}={value}" for name, value in labels.items())
