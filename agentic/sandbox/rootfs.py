"""The store of root folders: layers by digest, and an index from a task's environment to its image.

    layers/<digest>/                      a folder of files, never changed once it has its name
    index/<base>/<environment hash>.json  the image built for an environment folder
    steps/<key>                           the layer that a build step made, so that it isn't run again
    building/<pid>-<n>/                   work in progress

Invariants: a layer or index entry appears whole or not at all (built aside, then renamed), so builders may run side by
side and be killed at any moment; a layer's digest is that of its content and of the layers below it, so that no stack
holds a layer twice, which overlayfs refuses; an image names the base that it was built on, and isn't found once the
machine's base has changed. Nothing here runs untrusted code.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agentic.sandbox.base_folder import BaseFolder, Bind, plan_base
from agentic.sandbox.errors import ImageStoreError

IGNORED_NAMES = frozenset({"__pycache__", ".DS_Store"})
"""Not part of an environment, and not copied into images: they appear by themselves."""

DIGEST_LENGTH = 32
"""Hexadecimal digits in a layer's name: 128 bits, short because overlayfs takes all names in one page of memory."""

OPAQUE_ATTRIBUTES = ("trusted.overlay.opaque", "user.overlay.opaque")


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How commands start in an image."""

    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"


@dataclass(frozen=True, slots=True)
class Rootfs:
    """An image that can be mounted."""

    digest: str
    layers: tuple[Path, ...]
    """Topmost first, as overlayfs wants them."""
    config: ImageConfig = field(default_factory=ImageConfig)
    binds: tuple[Bind, ...] = ()


class RootfsStore:
    """A store in a folder. Cheap to make: nothing is read or written before it is needed."""

    def __init__(self, root: Path, owner: int | None = None, base: BaseFolder | None = None) -> None:
        """`owner` is the user id, outside, of the sandboxes' root user; None is our own. Layers belong to it."""
        self.root = root
        self.owner = owner
        self._base = base
        self._numbers = itertools.count()

    @cached_property
    def base(self) -> BaseFolder:
        """The base folder as this machine provides it."""
        return self._base or plan_base()

    @cached_property
    def base_key(self) -> str:
        """Distinguishes images that were built on another base, or for another owner."""
        return hashlib.sha256(f"{self.base.digest} {self.owner}".encode()).hexdigest()[:16]

    def ensure_base(self) -> Rootfs:
        """The base alone, made when it isn't there yet."""
        digest = self.find_step(f"base-{self.base_key}")
        if digest is None:
            with self.building() as folder:
                self.base.write(folder)
                digest = self.add_layer(folder)
            self.record_step(f"base-{self.base_key}", digest)
        return self.rootfs((digest,), ImageConfig(env=self.base.env))

    def rootfs(self, layers: tuple[str, ...], config: ImageConfig) -> Rootfs:
        """An image of layers, the base first."""
        digest = hashlib.sha256(json.dumps([layers, asdict(config)], sort_keys=True).encode()).hexdigest()
        paths = tuple(self.root / "layers" / layer for layer in reversed(layers))
        return Rootfs(digest, paths, config, self.base.binds)

    def lookup(self, environment_dir: Path) -> Rootfs | None:
        """The image of a task's environment folder, if it was built."""
        return self.find(environment_hash(environment_dir))

    def find(self, environment: str) -> Rootfs | None:
        """The image of an environment hash, if it was built and all its layers are still here."""
        path = self._index_path(environment)
        try:
            entry = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ImageStoreError(f"{path} cannot be read ({error}): remove it and run build_images again") from error
        rootfs = self.rootfs(tuple(entry["layers"]), ImageConfig(**entry["config"]))
        return rootfs if all(layer.is_dir() for layer in rootfs.layers) else None

    def record(self, environment: str, rootfs: Rootfs) -> None:
        """Say that this is the image of an environment."""
        layers = [layer.name for layer in reversed(rootfs.layers)]
        entry = {"digest": rootfs.digest, "layers": layers, "config": asdict(rootfs.config)}
        self._write_atomically(self._index_path(environment), entry)

    def find_step(self, key: str) -> str | None:
        """The layer that a build step made before."""
        try:
            digest = str(json.loads((self.root / "steps" / key).read_text()))
        except FileNotFoundError:
            return None
        return digest if (self.root / "layers" / digest).is_dir() else None

    def record_step(self, key: str, digest: str) -> None:
        """Remember the layer that a build step made."""
        self._write_atomically(self.root / "steps" / key, digest)

    @contextlib.contextmanager
    def building(self) -> Iterator[Path]:
        """A folder for work in progress, removed at the end unless it became a layer."""
        folder = self.root / "building" / f"{os.getpid()}-{next(self._numbers)}-{os.urandom(4).hex()}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def add_layer(self, folder: Path, below: tuple[str, ...] = ()) -> str:
        """Make a finished folder a layer over others, by renaming it; its digest. The same is kept once."""
        if self.owner is not None:
            give_tree(folder, self.owner)
        content = tree_digest(folder, self.owner)
        digest = hashlib.sha256(" ".join([*below, content]).encode()).hexdigest()[:DIGEST_LENGTH]
        target = self.root / "layers" / digest
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():
                raise
        return digest

    def remove_stale_work(self) -> int:
        """Remove what builders that are no longer alive left half-built."""
        removed = 0
        for folder in (self.root / "building").glob("*"):
            pid = folder.name.partition("-")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
        return removed

    def _index_path(self, environment: str) -> Path:
        return self.root / "index" / self.base_key / f"{environment}.json"

    def _write_atomically(self, path: Path, value: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{next(self._numbers)}")
        temporary.write_text(json.dumps(value))
        temporary.replace(path)


def environment_hash(environment_dir: Path) -> str:
    """Identity of a task's environment folder: paths, kinds, executable bits and contents."""
    digest = hashlib.sha256()
    for name, path in sorted(_walk(environment_dir)):
        if IGNORED_NAMES.isdisjoint(Path(name).parts):
            kind, content = _describe(path)
            executable = "x" if kind == "file" and path.stat().st_mode & 0o100 else ""
            digest.update(f"{len(name)} {name} {kind}{executable} {content}\n".encode())
    return digest.hexdigest()


def tree_digest(folder: Path, owner: int | None) -> str:
    """Digest of a layer: paths, kinds, modes, owners as seen inside, contents, and overlayfs' marks."""
    digest = hashlib.sha256()
    for name, path in sorted([("", folder), *_walk(folder)]):
        status = path.lstat()
        kind, content = _describe(path)
        inside = status.st_uid - owner if owner is not None else 0
        digest.update(f"{len(name)} {name} {kind} {status.st_mode:o} {inside} {content}\n".encode())
    return digest.hexdigest()


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, files in os.walk(folder):
        for name in itertools.chain(folders, files):
            path = Path(parent, name)
            yield str(path.relative_to(folder)), path


def _describe(path: Path) -> tuple[str, str]:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "link", str(path.readlink())
    if stat.S_ISREG(status.st_mode):
        with path.open("rb") as handle:
            return "file", hashlib.file_digest(handle, "sha256").hexdigest()
    if stat.S_ISDIR(status.st_mode):
        return "folder", "opaque" if _is_opaque(path) else ""
    return "special", f"{status.st_rdev}"


def _is_opaque(folder: Path) -> bool:
    for name in OPAQUE_ATTRIBUTES:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"y":
                return True
    return False


def give_tree(folder: Path, owner: int) -> None:
    """Make what belongs to us belong to the sandboxes' root user; what a sandbox wrote has its owner already."""
    for _, path in [("", folder), *_walk(folder)]:
        status = path.lstat()
        if status.st_uid < owner:
            os.chown(path, owner, owner, follow_symlinks=False)
            if not stat.S_ISLNK(status.st_mode):
                path.chmod(stat.S_IMODE(status.st_mode))
