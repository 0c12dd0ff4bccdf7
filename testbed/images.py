"""OCI images written with the standard library, a layer at a time: no registry, no engine.

The same content gives the same digest: entries are sorted by their caller, owners are root, and times are those of the
sources, since Python's compiled modules are checked against them. An image is written once and kept in the cache under
a key that its maker gives.
"""

import hashlib
import io
import json
import os
import platform
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of the layer: a copy of `source`, else `data`, else a link to `link`, else a folder."""

    path: str
    mode: int = 0o755
    source: Path | None = None
    data: bytes | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What a container starts with unless its pod says otherwise."""

    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    working_folder: str = "/"


@dataclass(frozen=True, slots=True)
class Below:
    """The layers of an image that another one is written upon."""

    layers: tuple[dict[str, Any], ...] = ()
    """Descriptors, lowest first."""
    diff_ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, image: Path) -> Self:
        """Of an image that `write_image` wrote."""
        with tarfile.open(image) as archive:
            manifest = _read_json(archive, _blob(_read_json(archive, "index.json")["manifests"][0]["digest"]))
            config = _read_json(archive, _blob(manifest["config"]["digest"]))
        return cls(tuple(manifest["layers"]), tuple(config["rootfs"]["diff_ids"]))


def write_image(
    out: Path, name: str, entries: Iterable[Entry], config: ImageConfig, below: Below | None = None
) -> None:
    """A tar that `ctr images import` takes, with the image's whole name inside. Replaces `out` when it is complete.

    What is below is named and not contained: import that image first.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with tempfile.TemporaryFile(dir=out.parent) as layer:
            described = _write_layer(layer, entries)
            with tarfile.open(partial, "w") as archive:
                _write_archive(archive, name, (layer, described), config, below or Below())
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


class _Hashing(io.RawIOBase):
    """Passes on what is written, and knows its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return self._file.write(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _write_layer(file: IO[bytes], entries: Iterable[Entry]) -> dict[str, Any]:
    hashing = _Hashing(file)
    with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK_BYTES) as layer:
        for entry in entries:
            _add(layer, entry)
    return {
        "mediaType": "application/vnd.oci.image.layer.v1.tar",
        "digest": hashing.digest,
        "size": file.seek(0, os.SEEK_END),
    }


def _add(layer: tarfile.TarFile, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.path.strip("/"))
    info.mode = entry.mode
    if entry.source is not None:
        status = entry.source.stat()
        info.mode, info.mtime, info.size = status.st_mode & 0o7777, int(status.st_mtime), status.st_size
        with entry.source.open("rb") as data:
            layer.addfile(info, data)
    elif entry.data is not None:
        info.size = len(entry.data)
        layer.addfile(info, io.BytesIO(entry.data))
    else:
        info.type = tarfile.DIRTYPE if entry.link is None else tarfile.SYMTYPE
        info.linkname = entry.link or ""
        layer.addfile(info)


def _write_archive(
    archive: tarfile.TarFile, name: str, top: tuple[IO[bytes], dict[str, Any]], config: ImageConfig, below: Below
) -> None:
    layer, described = top
    runs_on = {"architecture": _MACHINES[platform.machine()], "os": "linux"}
    started = {
        "Env": [f"{key}={value}" for key, value in config.env.items()],
        "Entrypoint": list(config.entrypoint),
        "WorkingDir": config.working_folder,
    }
    diff_ids = [*below.diff_ids, described["digest"]]
    document = runs_on | {"config": started, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _add_json(archive, "application/vnd.oci.image.config.v1+json", document),
        "layers": [*below.layers, described],
    }
    named = _add_json(archive, str(manifest["mediaType"]), manifest) | {
        "annotations": {"io.containerd.image.name": name},
        "platform": runs_on,
    }
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [named],
    }
    _add_bytes(archive, "index.json", json.dumps(index).encode())
    _add_bytes(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
    info = tarfile.TarInfo(_blob(described["digest"]))
    info.size = described["size"]
    layer.seek(0)
    archive.addfile(info, layer)


def _add_json(archive: tarfile.TarFile, media_type: str, document: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(document).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    _add_bytes(archive, _blob(digest), data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _read_json(archive: tarfile.TarFile, path: str) -> dict[str, Any]:
    member = archive.extractfile(path)
    if member is None:
        raise ValueError(f"an image's archive holds no file {path}")
    found: dict[str, Any] = json.load(member)
    return found


def _add_bytes(archive: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
