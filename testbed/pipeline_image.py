"""The image of the workflow's steps and of Ray here: the sandboxes' base, with this checkout's environment before all.

The base is made known to the registry too, where BuildKit finds it. The environment is 5.5 GB and is not in the image.
It lies on the node, that is on this machine, and pods see it by `cluster.mounts` (`host_mounts`): the checkout, its
Python, and /usr for the libraries that both link to, each read-only and at its own path, since programs of an
environment name their interpreter by its path.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from testbed.component import Machine
from testbed.images import Below, Entry, ImageConfig, write_image
from testbed.layout import Layout
from testbed.sandbox_image import IMAGE as BASE
from testbed.sandbox_image import make_sandbox_image
from testbed.tools import Toolbox

ROOT = Path(__file__).resolve().parents[1]

NAME = f"agentic-rl/on-node:{hashlib.sha256(str(ROOT).encode()).hexdigest()[:6]}"
"""In settings. Each checkout has its own, since its containers look into its folders."""

IMAGE = f"docker.io/{NAME}"
"""Its whole name."""

_NAMES = b"passwd: files\ngroup: files\nhosts: files dns\n"
"""The base knows no names on purpose, and Ray's pods find their head by one."""


def import_pipeline_image(layout: Layout) -> None:
    """May be repeated."""
    folder = layout.cache / "images"
    base = make_sandbox_image(folder)
    out = folder / f"on-node-{base.stem}-{os.getpid()}.tar"
    config = ImageConfig(env=environment(), working_folder=str(ROOT))
    machine = Machine(layout, Toolbox(layout))
    entries = [
        Entry("etc"),
        Entry("etc/nsswitch.conf", 0o644, data=_NAMES),
        Entry("opt"),
        Entry("opt/build"),
        Entry("opt/build/buildctl", source=machine.tools.path("buildctl")),
    ]
    write_image(out, IMAGE, entries, config, Below.of(base))
    try:
        machine.containerd("images", "import", str(out))
    finally:
        out.unlink()


def push_base(layout: Layout) -> str:
    """The base of sandboxes under the registry's name for it, which is returned. May be repeated."""
    name = f"{layout.registry}/agentic/base:local"
    machine = Machine(layout, Toolbox(layout))
    machine.containerd("images", "tag", "--force", BASE, name)
    machine.containerd("images", "push", "--plain-http", name)
    return name


def environment() -> dict[str, str]:
    """That of every container."""
    path = f"{sys.prefix}/bin:/opt/build:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "LANG": "C.UTF-8", "HOME": "/root", "PYTHONDONTWRITEBYTECODE": "1"}


def host_mounts() -> str:
    """`cluster.mounts` as JSON."""
    folders = outermost([ROOT, Path(sys.prefix), Path(sys.base_prefix), Path("/usr")])
    return json.dumps([{"host_path": str(folder), "mount_path": str(folder)} for folder in folders])


def outermost(folders: Iterable[Path]) -> list[Path]:
    """Without those that lie in another."""
    found = sorted(set(folders))
    return [one for one in found if not any(one != other and one.is_relative_to(other) for other in found)]
