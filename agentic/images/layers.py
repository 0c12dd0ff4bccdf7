"""Writes what COPY and WORKDIR say into a layer that is being built, looking through the layers below it.

A path of the image is resolved as the sandbox will see it: through symbolic links in any layer, from the top down,
never through links of the host. What would land where the base shows the host's own files is refused: it would be
hidden.
"""

import shutil
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from agentic.images.dockerfile import Copy, MakeWorkdir
from agentic.images.errors import ImageBuildError
from agentic.sandbox.rootfs import IGNORED_NAMES

MAX_LINKS = 40


class LayerWriter:
    """One layer in the making, over finished ones."""

    def __init__(self, folder: Path, below: Sequence[Path], hidden: Sequence[str]) -> None:
        """`below`: topmost first. `hidden`: where the host shows through."""
        self._folder = folder
        self._layers = [folder, *below]
        self._hidden = [PurePosixPath(path) for path in hidden]

    def make_workdir(self, step: MakeWorkdir) -> None:
        """WORKDIR."""
        self._make_folder(self._resolve(step.path, step.line))

    def copy(self, step: Copy, context: Path) -> None:
        """COPY, from the build folder."""
        sources = [path for pattern in step.sources for path in find_sources(context, pattern, step.line)]
        target = self._resolve(step.target, step.line)
        into_folder = step.target.endswith("/") or len(sources) > 1
        for source in sources:
            if source.is_dir():
                self._copy_tree(source, target)
            else:
                inside = into_folder or self._is_folder(target)
                self._copy_file(source, target / source.name if inside else target)

    def _copy_tree(self, source: Path, target: PurePosixPath) -> None:
        self._make_folder(target)
        for child in sorted(source.iterdir()):
            if child.name in IGNORED_NAMES:
                continue
            if child.is_dir() and not child.is_symlink():
                self._copy_tree(child, target / child.name)
            else:
                self._copy_file(child, target / child.name)

    def _copy_file(self, source: Path, target: PurePosixPath) -> None:
        self._make_folder(target.parent)
        path = self._at(self._folder, target)
        if path.is_symlink() or path.is_file():
            path.unlink()
        shutil.copy2(source, path, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o777)

    def _make_folder(self, path: PurePosixPath) -> None:
        """Make a folder and its parents; one that exists below keeps its mode."""
        for part in [*reversed(path.parents), path]:
            here = self._at(self._folder, part)
            if here.is_dir():
                continue
            mode = self._mode(part)
            here.mkdir()
            here.chmod(stat.S_IMODE(mode) if mode is not None and stat.S_ISDIR(mode) else 0o755)

    @staticmethod
    def _at(layer: Path, path: PurePosixPath) -> Path:
        return layer / path.relative_to("/")

    def _mode(self, path: PurePosixPath) -> int | None:
        """What a resolved path is, by the topmost layer that knows it; None when it doesn't exist."""
        for layer in self._layers:
            try:
                mode = self._at(layer, path).lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                continue
            return None if stat.S_ISCHR(mode) else mode
        return None

    def _is_folder(self, path: PurePosixPath) -> bool:
        mode = self._mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def _resolve(self, path: str, line: int) -> PurePosixPath:
        """Where a path leads, links followed as the sandbox would."""
        parts, resolved, links = list(PurePosixPath(path).parts[1:]), PurePosixPath("/"), 0
        while parts:
            part = parts.pop(0)
            if part == "..":
                resolved = resolved.parent
                continue
            step = resolved / part
            mode = self._mode(step)
            if mode is None or not stat.S_ISLNK(mode):
                resolved = step
                continue
            links += 1
            if links > MAX_LINKS:
                raise ImageBuildError(f"line {line}: too many symbolic links in {path}")
            destination = PurePosixPath(self._link(step))
            if destination.is_absolute():
                resolved = PurePosixPath("/")
            parts = [part for part in destination.parts if part != "/"] + parts
        if any(resolved.is_relative_to(place) for place in self._hidden):
            raise ImageBuildError(f"line {line}: {path} lies where the base image shows this machine's own files")
        return resolved

    def _link(self, path: PurePosixPath) -> str:
        holder = next(layer for layer in self._layers if self._at(layer, path).is_symlink())
        return str(self._at(holder, path).readlink())


def find_sources(context: Path, pattern: str, line: int) -> list[Path]:
    """The files and folders of the build folder that a COPY source names, in order."""
    if pattern in (".", "./"):
        return [context]
    root = context.resolve()
    found = sorted(context.glob(pattern.rstrip("/")))
    if not found:
        raise ImageBuildError(f"line {line}: COPY found nothing called {pattern}")
    sources = []
    for path in found:
        if not path.resolve().is_relative_to(root):
            raise ImageBuildError(f"line {line}: {path.relative_to(context)} leads out of the environment folder")
        sources.append(path.resolve() if path.is_symlink() else path)
    return sources
