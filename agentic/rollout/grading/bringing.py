"""Into the fresh sandbox: the agent's changes, and then the task's tests, in one round trip.

Before, whatever an image has in `/tests` or left in `/logs/verifier` is removed, and so is what lies in the way of the
changes, so that nothing that is unpacked follows a link. Everything comes as one tar stream of our own making.
"""

import io
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

from harbor.models.trial.paths import EnvironmentPaths

from agentic.rollout.grading.changes import Change, add_changes, removed_paths
from agentic.rollout.grading.collecting import Runs
from agentic.rollout.grading.tree import Listing
from agentic.sandbox.errors import SandboxTransferError

WORDS_BYTES = 64 * 1024
"""Of paths in one command: the kernel takes 128 KiB for a word and 2 MiB for all."""

_WORK, _TESTS = "w/", "t/"
_REMOVE = 'cd "$0" && rm -rf -- "$@"'
# Where the root is read-only the tests' folder is a volume, which can be emptied and not removed.
_BRING = """\
where=$1; shift
rm -rf -- {tests} {verifier} || {{ [ ! -L {tests} ] && [ -z "$(ls -A {tests})" ] && [ ! -e {verifier} ]; }} &&
mkdir -p {folders} && chmod 777 {folders} &&
cd "$0" && rm -rf -- "$@" && tar -xpmPf - --numeric-owner --transform "$where"
"""


async def bring(
    environment: Runs, tests: Path, paths: EnvironmentPaths, untouched: Listing, changes: Sequence[Change]
) -> None:
    """Raises SandboxTransferError when it did not arrive."""
    *before, last = _portions(removed_paths(changes, untouched))
    for words in before:
        await _run(environment, _REMOVE, (untouched.folder, *words), b"")
    folders = f"{paths.tests_dir} {paths.agent_dir} {paths.verifier_dir} {paths.artifacts_dir}"
    script = _BRING.format(tests=paths.tests_dir, verifier=paths.verifier_dir, folders=folders)
    where = f"{_moved(_WORK, untouched.folder)};{_moved(_TESTS, str(paths.tests_dir))}"
    await _run(environment, script, (untouched.folder, where, *last), pack(tests, untouched, changes))


def pack(tests: Path, untouched: Listing, changes: Sequence[Change]) -> bytes:
    """The stream: changes below one name, tests below another, scripts executable."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
        add_changes(archive, changes, untouched, _WORK)
        for child in sorted(tests.iterdir()):
            archive.add(child, _TESTS + child.name, filter=_of_root)
    return buffer.getvalue()


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.isreg() and member.name.endswith(".sh"):
        member.mode |= stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
    return member


def _moved(prefix: str, folder: str) -> str:
    """GNU tar's transformation of member names that begin so, and of no link's target."""
    escaped = "".join(f"\\{letter}" if letter in "\\,&;" else letter for letter in folder)
    return f"s,^{prefix},{escaped}/,rSH"


def _portions(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """As many at a time as one command takes; at least one portion."""
    portions: list[tuple[str, ...]] = []
    portion: list[str] = []
    size_bytes = 0
    for path in paths:
        path_bytes = len(path.encode(errors="surrogateescape")) + 1
        if size_bytes + path_bytes > WORDS_BYTES:
            portions.append(tuple(portion))
            portion, size_bytes = [], 0
        portion.append(path)
        size_bytes += path_bytes
    return [*portions, tuple(portion)]


async def _run(environment: Runs, script: str, words: Sequence[str], stdin: bytes) -> None:
    result = await environment.run(("/bin/sh", "-c", script, *words), stdin=stdin)
    if result.exit_code != 0:
        raise SandboxTransferError(
            f"changes and tests did not arrive for grading (exit code {result.exit_code}): "
            f"{result.error_text.strip()[-200:]}"
        )
