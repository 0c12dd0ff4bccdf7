"""What a finished data set says about itself; written last, so that its presence means complete."""

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from agentic.errors import PermanentError

MANIFEST = "manifest.json"


class Manifest(BaseModel):
    """`datasets/<name>/manifest.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = 1
    name: str
    source: str
    recipe_sha256: str
    """Of the settings and the code that made it: a data set made by others is made anew."""
    seed: int
    counts: dict[str, int]
    splits: dict[str, list[str]]
    """Split → task ids; `train` is the one to train on."""
    content_sha256: str
    """Over all task files by path."""
    tasks_sha256: dict[str, str] = {}
    """Task id → the same for its folder alone."""


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest, or nothing when the data set isn't complete."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise PermanentError(f"{path} cannot be read ({_first_line(error)}): delete {folder}") from error


def hash_tree(folder: Path) -> str:
    """Digest over paths and contents of all files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def hash_recipe(settings: BaseModel, *code: Path) -> str:
    """Digest over the settings and the Python sources in the folders."""
    digest = hashlib.sha256(settings.model_dump_json().encode())
    for path in (path for folder in code for path in sorted(folder.rglob("*.py"))):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
