"""The project's own images, built by BuildKit from `images/`: what each is made of, as a command line. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentic.images.buildctl import Client
from agentic.images.errors import ImageNameError
from agentic.images.reference import Reference

NAMES = ("steps", "trainer", "sandbox-tools", "exec-server")


@dataclass(frozen=True, slots=True)
class OwnImage:
    """One of them, to be pushed."""

    name: str
    target: Reference
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Of the Dockerfile, such as BASE."""
    contexts: Mapping[str, Path] = field(default_factory=dict)
    """Folders that stand for stages, such as `wheels`."""
    plain_http: bool = False


def target_of(registry: str, name: str, tag: str) -> Reference:
    """Where an image is pushed: `steps` goes to `registry.example/team/agentic-rl/steps:TAG`."""
    if name not in NAMES:
        raise ImageNameError(f"{name!r} is none of our images: use one of {', '.join(NAMES)}")
    return Reference.parse(f"{registry}/agentic-rl/{name}:{tag}")


def own_command(client: Client, image: OwnImage, root: Path) -> list[str]:
    """`root`: the checkout."""
    folder = root / "images" / image.name
    # The exec server is a module of another language, which needs nothing else of ours.
    context = folder if image.name == "exec-server" else root
    insecure = ",registry.insecure=true" if image.plain_http else ""
    return [
        *client.command(0),
        "build",
        "--progress=plain",
        "--frontend=dockerfile.v0",
        f"--local=context={context}",
        f"--local=dockerfile={folder}",
        *client.trusting([image.target]),
        *(f"--opt=build-arg:{name}={value}" for name, value in image.arguments.items()),
        *(
            word
            for name, path in image.contexts.items()
            for word in (f"--local={name}={path}", f"--opt=context:{name}=local:{name}")
        ),
        f"--output=type=image,name={image.target},push=true{insecure}",
    ]
