"""What BuildKit's client is told to build an image, as a command line, and what its last words mean. Pure.

No `# syntax=` line is asked for and none is needed: the frontend is BuildKit's own, so that a build fetches nothing but
what its Dockerfile names.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentic.images.reference import Reference
from agentic.images.settings import ImageSettings

PROGRAM = "buildctl"
CONNECT_SECONDS = 60
"""How long a build tries to connect: a network policy lets a new pod through a moment after the pod runs."""
CHECK_SECONDS = 20
"""The same for a look at whether there is a way at all."""
CACHE_TAG = "agentic-rl-cache"
"""Of our own: by it we know a repository that we push to."""
ENVIRONMENT_LABEL = "agentic-rl.environment"
"""Of an image: the content that it was built from."""

WORDS_CHARACTERS = 600
"""Of a build's last words, in a reason."""

_ERROR = re.compile(r"^(?:error: |ERROR: )(.*(?:\n[a-z ]+: .*)*)", re.MULTILINE)
"""With the lines that follow, which are a registry's errors when it sends several."""
_PRINTED = re.compile(r"^(?:#\d+ )?\d+\.\d+ (.*\S)", re.MULTILINE)
"""A line of a command's output, after its time."""

_STATUS = r"(?:status(?: code)?(?: from \S+ request(?: to \S+)?)?:? |HTTP(?: Error|/[\d.]+)? |error(?: code)?:? )"
"""What stands before an answer's number: a number alone may be a line's, or a count of tests."""
_LIMITED = re.compile(rf"{_STATUS}429\b|\b429[: ]+(?:too|client)|too ?many ?requests|rate limit", re.IGNORECASE)
_PASSING = re.compile(
    rf"{_STATUS}50[0234]\b|\b50[0234][: ]+(?:internal|bad|service|gateway|server)"
    r"|connection (?:refused|reset|timed out|error|aborted)|i/o timeout|TLS handshake timeout"
    r"|unexpected EOF(?! while looking)|temporary failure|no route to host|network is unreachable"
    r"|context deadline exceeded|transport is closing|code = Unavailable|server misbehaving|timed? ?out|broken pipe"
    r"|no space left|service unavailable|bad gateway|did not match uploaded content|blob (?:upload )?unknown"
    r"|session healthcheck failed|could not resolve|lease .* not found",
    re.IGNORECASE,
)
"""Words of builds that may succeed when nothing but time has passed."""

_UNREACHED = re.compile(
    r"failed to dial|error reading server preface|connection error|dial tcp|failed to list workers|no such host"
)
_ABSENT = re.compile(r"executable file not found|no such file or directory: unknown")
_DISTRUST = re.compile(r"x509:|certificate|authentication handshake failed|tls: ")
_REFUSED = re.compile(
    rf"{_STATUS}40[13]\b|unauthorized|forbidden|authorization failed|insufficient_scope|denied", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """One image to be built and pushed."""

    key: str
    """What it is built from, as hexadecimal digits: orders of the same key make the same image."""
    task: str
    """The first of those that need it, for people."""
    names: tuple[Reference, ...]
    """What it is pushed as; asked for by the first afterwards."""
    context: Path
    """Folder with the Dockerfile, as the client sees it."""
    bases: Mapping[str, str] = field(default_factory=dict)
    """Names in FROM, and the images that they stand for."""


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """Why an attempt gave no image."""

    reason: str
    may_pass: bool
    is_limited: bool = False
    """Whether a registry asked for patience."""


@dataclass(frozen=True, slots=True)
class Client:
    """How the client reaches BuildKit and registries, where it runs."""

    address: str
    tls_folder: str | None = None
    """With `ca.pem`, `cert.pem` and `key.pem`."""
    ca_file: str | None = None
    """Authorities of registries that sign for themselves."""

    def command(self, connect_seconds: int) -> list[str]:
        """The program with what all of its verbs take; 0 tries once, and says best why it failed."""
        names = {"tlscacert": "ca.pem", "tlscert": "cert.pem", "tlskey": "key.pem"}
        certificates = [f"--{flag}={self.tls_folder}/{name}" for flag, name in names.items()] if self.tls_folder else []
        waits = ["--wait", f"--timeout={connect_seconds}"] if connect_seconds else []
        return [PROGRAM, f"--addr={self.address}", *waits, *certificates]

    def trusting(self, names: Sequence[Reference]) -> list[str]:
        """What `build` takes so that the servers of tokens of these registries are trusted."""
        hosts = {name.host for name in names} if self.ca_file else set()
        return [f"--registry-auth-tlscontext=host={host},ca={self.ca_file}" for host in sorted(hosts)]


def check_command(client: Client, connect_seconds: int = 0) -> list[str]:
    """Ends well when BuildKit answers and has something to build with."""
    return [*client.command(connect_seconds), "debug", "workers"]


def build_command(client: Client, order: BuildOrder, settings: ImageSettings) -> list[str]:
    """Builds and pushes."""
    first = order.names[0]
    options = [f"label:{ENVIRONMENT_LABEL}={order.key}"]
    options += [f"context:{base}=docker-image://{image}" for base, image in order.bases.items()]
    return [
        *client.command(CONNECT_SECONDS),
        "build",
        "--progress=plain",
        "--frontend=dockerfile.v0",
        f"--local=context={order.context}",
        f"--local=dockerfile={order.context}",
        *(f"--opt={option}" for option in options),
        *client.trusting(order.names),
        f'--output=type=image,"name={",".join(map(str, order.names))}",push=true{_in_the_clear(first, settings)}',
        *(_cache(first, settings) if settings.cache == "registry" else ()),
    ]


def _cache(first: Reference, settings: ImageSettings) -> Sequence[str]:
    """Beside the image. A cache that cannot be kept is no reason to lose the image."""
    where = f"type=registry,ref={first.tagged(CACHE_TAG)}{_in_the_clear(first, settings)}"
    return (
        f"--import-cache={where}",
        f"--export-cache={where},mode=max,image-manifest=true,oci-mediatypes=true,ignore-error=true",
    )


def _in_the_clear(reference: Reference, settings: ImageSettings) -> str:
    return ",registry.insecure=true" if reference.server in settings.registry.plain_http else ""


def judge_build(output: str) -> BuildFailure:
    """From the end of what a failed build printed."""
    errors = _ERROR.findall(output)
    error = errors[-1].strip() if errors else (output.strip().splitlines() or ["it printed nothing"])[-1].strip()
    if "did not complete successfully" not in error:
        is_limited = bool(_LIMITED.search(error))
        may_pass = is_limited or (bool(_PASSING.search(error)) and not _REFUSED.search(error))
        return BuildFailure(_shortened(error), may_pass, is_limited)
    # The error repeats the command, whose own words say nothing about what became of it.
    words = " / ".join(_PRINTED.findall(output)[-3:])
    reason = f"{error}; it printed: {words}" if words else error
    # What a command met is this image's own trouble, also when somebody asked that command for patience.
    return BuildFailure(_shortened(reason), bool(_LIMITED.search(words) or _PASSING.search(words)))


def judge_check(
    output: str, trust: str = "set images.buildkit_tls_secret to certificates that it knows"
) -> tuple[str, str]:
    """Why BuildKit was not reached, in its client's words, and what to do where waiting cannot help; `trust` is what
    to do about certificates."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    known = (_ABSENT, _DISTRUST, _UNREACHED)
    told = next((line for kind in known for line in reversed(lines) if kind.search(line)), (lines or ["no output"])[-1])
    remedy = ""
    if _ABSENT.search(told):
        remedy = f"set images.builder_image to one that has {PROGRAM}"
    elif _DISTRUST.search(told):
        remedy = trust
    return _shortened(told.removeprefix("error: ")), remedy


def _shortened(text: str) -> str:
    words = " ".join(text.split())
    return (
        words
        if len(words) <= WORDS_CHARACTERS
        else f"{words[: WORDS_CHARACTERS // 2]} ... {words[-WORDS_CHARACTERS // 2 :]}"
    )
