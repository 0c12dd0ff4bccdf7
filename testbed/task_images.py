"""Images of tasks, out of the store that local sandboxes mount, for pods: the same files without building them twice.

A store's image is layers over the base folder; here each becomes one OCI layer on top of the base image, which the
node holds already. A pod asks for the name that the caller gave, with the pull policy IfNotPresent.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentic.sandbox.rootfs import OPAQUE_ATTRIBUTES, Rootfs
from testbed.component import Machine
from testbed.images import Below, Entry, ImageConfig, write_image
from testbed.layout import Layout
from testbed.sandbox_image import make_sandbox_image
from testbed.tools import Toolbox

WHITEOUT = ".wh."
"""Before the name of what a layer deletes."""
OPAQUE = ".wh..wh..opq"
"""In a folder that hides all that lies below it."""


def import_task_images(layout: Layout, images: Mapping[str, Rootfs]) -> None:
    """Name such as `docker.io/tasks/median:1` → image of the store. May be repeated."""
    folder = layout.cache / "images"
    base = make_sandbox_image(folder)
    below = Below.of(base)
    machine = Machine(layout, Toolbox(layout))
    for name, rootfs in images.items():
        out = folder / f"task-{base.stem}-{rootfs.digest[:16]}.tar"
        config = ImageConfig(env=rootfs.config.env, working_folder=rootfs.config.workdir)
        write_image(out, name, merged_entries(rootfs.layers[:-1]), config, below)
        try:
            machine.containerd("images", "import", str(out))
        finally:
            out.unlink()


def merged_entries(layers: tuple[Path, ...]) -> Iterator[Entry]:
    """All layers above the base as one, in the order of paths; the topmost comes first in `layers`."""
    found: dict[str, Entry] = {}
    for layer in reversed(layers):
        for path in sorted(layer.rglob("*")):
            inside = path.relative_to(layer)
            entry = entry_of(path, str(inside))
            hides = is_opaque(path) or found.pop(_whiteout(inside), None) is not None
            if hides or entry.path == _whiteout(inside):
                found = {name: old for name, old in found.items() if not Path(name).is_relative_to(inside)}
            found[entry.path] = entry
            if hides and path.is_dir():
                found[str(inside / OPAQUE)] = Entry(str(inside / OPAQUE), 0o644, data=b"")
    return (found[name] for name in sorted(found))


def entry_of(path: Path, inside: str) -> Entry:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Entry(inside, 0o777, link=str(path.readlink()))
    if stat.S_ISDIR(status.st_mode):
        return Entry(inside, stat.S_IMODE(status.st_mode))
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:  # overlayfs marks what was deleted so
        return Entry(_whiteout(Path(inside)), 0o644, data=b"")
    return Entry(inside, source=path)


def _whiteout(inside: Path) -> str:
    return str(inside.with_name(f"{WHITEOUT}{inside.name}"))


def is_opaque(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    return any(name in os.listxattr(path) and os.getxattr(path, name) == b"y" for name in OPAQUE_ATTRIBUTES)
