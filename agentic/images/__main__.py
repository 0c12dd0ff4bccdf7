"""Our own images, and looking into registries:

python -m agentic.images build steps trainer --registry registry.example/team --buildkit tcp://127.0.0.1:1234
python -m agentic.images show registry.example/team/agentic-rl/steps:0.1.0
"""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentic.errors import AgenticError, TransientError
from agentic.images.buildctl import Client
from agentic.images.errors import ImageBuildError
from agentic.images.own import NAMES, OwnImage, own_command, target_of
from agentic.images.reference import Reference
from agentic.images.registry import Registry
from agentic.images.registry_login import Logins
from agentic.images.settings import RegistrySettings

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """0; after a line that says what is wrong 78, or 75 where it may pass."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.act(options))
    except AgenticError as error:
        sys.stderr.write(f"{error}\n")
        return 75 if isinstance(error, TransientError) else 78


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agentic.images", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    build = verbs.add_parser("build", help="build and push our own images")
    build.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    build.add_argument("--registry", required=True, help="host, and perhaps a path, such as registry.example/team")
    build.add_argument("--buildkit", default="unix:///run/buildkit/buildkitd.sock", help="address (%(default)s)")
    build.add_argument(
        "--buildkit-tls", metavar="FOLDER", help="ca.pem, cert.pem and key.pem, where BuildKit asks for them"
    )
    build.add_argument("--tag", default=_version(), help="of each (%(default)s)")
    build.add_argument("--arg", action="append", default=[], type=_pair, metavar="NAME=VALUE", help="of the Dockerfile")
    build.add_argument(
        "--context",
        action="append",
        default=[],
        type=_pair,
        metavar="STAGE=FOLDER",
        help="a folder that stands for a stage",
    )
    build.set_defaults(act=_build)
    show = verbs.add_parser("show", help="digest and size of images in registries")
    show.add_argument("images", nargs="+", metavar="IMAGE")
    show.set_defaults(act=_show)
    for verb in (build, show):
        verb.add_argument("--plain-http", action="append", default=[], metavar="HOST", help="a registry without TLS")
        verb.add_argument("--patience", type=float, default=60, metavar="SECONDS", help="with registries (%(default)s)")
        verb.add_argument("--ca-file", help="authorities of registries that sign for themselves")
    return parser


def _version() -> str:
    try:
        return version("agentic-rl")
    except PackageNotFoundError:
        return "latest"


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


def _build(options: argparse.Namespace) -> int:
    targets, client = [], Client(options.buildkit, options.buildkit_tls, options.ca_file)
    for name in options.names:
        target = target_of(options.registry, name, options.tag)
        contexts = {stage: Path(folder).absolute() for stage, folder in options.context}
        image = OwnImage(name, target, dict(options.arg), contexts, target.server in options.plain_http)
        try:
            done = subprocess.run(own_command(client, image, ROOT), check=False)
        except FileNotFoundError:
            raise ImageBuildError("there is no buildctl in PATH: install BuildKit's client") from None
        if done.returncode:
            raise ImageBuildError(f"{name} was not built: buildctl ended with {done.returncode}, see above")
        targets.append(target)
    return asyncio.run(_look(targets, options))


def _show(options: argparse.Namespace) -> int:
    return asyncio.run(_look([Reference.parse(name) for name in options.images], options))


async def _look(references: Sequence[Reference], options: argparse.Namespace) -> int:
    patience = options.patience
    settings = RegistrySettings(
        plain_http=tuple(options.plain_http), ca_file=options.ca_file, patience_seconds=patience
    )
    missing = 0
    async with Registry(settings, Logins.read()) as registry:
        for reference in references:
            digest = await registry.digest_of(reference)
            if digest is None:
                missing += 1
                sys.stdout.write(f"{reference}: there is no such image\n")
                continue
            size = await registry.bytes_of(reference.pinned(digest))
            sys.stdout.write(f"{reference}: {reference.pinned(digest)}, {size / MEGABYTE:.1f} MB to pull\n")
    return 78 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
