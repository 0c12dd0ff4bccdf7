"""Files and folders that a reader sees as they were or as they are, never in between, on any POSIX file system."""

import json
import os
import shutil
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """The same for plain data."""
    write_text(path, json.dumps(content, indent=1))


def publish_folder(partial: Path, out: Path) -> None:
    """Give a finished folder its name by one rename; one that stands there steps aside first and is deleted last."""
    if out.is_symlink():
        out.unlink()
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    partial.rename(out)
    shutil.rmtree(old, ignore_errors=True)
