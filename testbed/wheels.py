"""Wheels of what is installed here, so that an image can be built in a network without a package index.

A wheel is an archive of the files that its installation lists (RECORD), less what an installer makes anew: scripts,
compiled modules and its own notes. The pins are those of this environment, which are the project's.
"""

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from testbed.errors import MachineError

_NOTES = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"})
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^]]*)\])?")


def closure(wanted: Iterable[str]) -> dict[str, Distribution]:
    """Installed packages by their normal name: those wanted, each as `name` or `name[extra]`, and all that they need
    here. Raises MachineError for one that is wanted and missing."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(requirement, True) for requirement in wanted]
    while waiting:
        requirement, is_wanted = waiting.pop()
        name, extras = _parse(requirement)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            if is_wanted:
                raise MachineError(f"{name} is not installed here: run make setup") from None
            continue
        waiting += [(need, False) for need in found[name].requires or () if _is_needed(need, extras)]
    return found


def _parse(requirement: str) -> tuple[str, frozenset[str]]:
    match = _REQUIREMENT.match(requirement)
    if match is None:
        raise MachineError(f"{requirement!r} is no requirement")
    extras = frozenset(extra.strip().lower() for extra in (match[2] or "").split(",") if extra.strip())
    return re.sub(r"[-_.]+", "-", match[1]).lower(), extras


def _is_needed(requirement: str, extras: frozenset[str]) -> bool:
    """By its marker; a package that is not installed has no place here whatever the marker says."""
    from packaging.requirements import Requirement

    marker = Requirement(requirement).marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})


def write_wheels(wanted: Iterable[str], folder: Path) -> list[Path]:
    """One wheel for each package of the closure."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(found, folder) for _, found in sorted(closure(wanted).items())]


def _write(package: Distribution, folder: Path) -> Path:
    wheel = package.read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: (\S+)", wheel, re.MULTILINE) or ["py3-none-any"]
    name = re.sub(r"[-_.]+", "_", package.metadata["Name"])
    path = folder / f"{name}-{package.version}-{_joined(tags)}.whl"
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in package.files or ():
            inside = PurePosixPath(str(file))
            if _is_made_anew(inside):
                continue
            data = Path(str(package.locate_file(file))).read_bytes()
            archive.writestr(zipfile.ZipInfo(str(inside)), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.writerow([str(inside), f"sha256={digest}", len(data)])
        notes = f"{_notes_folder(package)}/RECORD"
        rows.writerow([notes, "", ""])
        archive.writestr(zipfile.ZipInfo(notes), record.getvalue())
    return path


def _joined(tags: list[str]) -> str:
    """`cp312-cp312-linux_x86_64`, from the tags that a wheel was unfolded into."""
    parts = zip(*(tag.split("-") for tag in tags), strict=True)
    return "-".join(".".join(dict.fromkeys(part)) for part in parts)


def _is_made_anew(path: PurePosixPath) -> bool:
    if ".." in path.parts or path.is_absolute() or "__pycache__" in path.parts:
        return True
    return path.parent.name.endswith(".dist-info") and path.name in _NOTES


def _notes_folder(package: Distribution) -> str:
    for file in package.files or ():
        if file.parent.name.endswith(".dist-info"):
            return str(file.parent)
    raise MachineError(f"{package.metadata['Name']} was not installed from a wheel: it has no dist-info")
