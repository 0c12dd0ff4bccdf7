"""A library's tests in one sandbox: once as they are, to learn what passes and what it runs, and then with edits.

Nothing of the library runs outside the sandbox. An edit is made there, tried and taken back; what a run left behind in
the background is ended before the next.
"""

import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.sandbox.base import Sandbox, SandboxSpec
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import TaskFolder, write_task
from agentic.tasks.mutation.library_task import PROBE, WORK_FOLDER, Library, environment_files

PROBE_FOLDER = "/opt/probe"
OUT = "/tmp/probe.json"


class TestRun(BaseModel):
    """What the probe wrote."""

    __test__ = False
    model_config = ConfigDict(frozen=True)

    outcomes: dict[str, str]
    messages: dict[str, str] = {}
    calls: dict[str, list[tuple[str, int]]] = {}

    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


class LibraryTests:
    """Made by `library_tests`."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self._sandbox = sandbox
        self._folder = folder

    async def run(self, seconds: float, names: Sequence[str] = (), *, trace: bool = False) -> TestRun | None:
        """All tests, or those named; None when the run ended without a record: crashed, or out of time."""
        env = {"PROBE_OUT": OUT, **({"PROBE_TRACE": "1"} if trace else {})}
        options = "-q -o addopts= -p no:cacheprovider -p agentic_probe --tb=line --continue-on-collection-errors"
        prefix = f"rm -f {OUT}; export PYTHONPATH={PROBE_FOLDER}:$PYTHONPATH;"
        arguments = "\0".join(names).encode()
        command = f"{prefix} tr '\\0' '\\n' > /tmp/names; python3 -m pytest {options} {'@/tmp/names' if names else ''}"
        result = await self._sandbox.exec(command, cwd=WORK_FOLDER, env=env, timeout_seconds=seconds, stdin=arguments)
        await self._sandbox.end_commands()
        if result.timed_out:
            return None
        written = await self._sandbox.exec(["cat", OUT])
        return TestRun.model_validate_json(written.stdout) if written.exit_code == 0 else None

    async def write(self, path: str, text: str) -> None:
        """Replace one file of the library."""
        local = self._folder / "edited.py"
        local.write_text(text, encoding="utf-8")
        await self._sandbox.upload(local, f"{WORK_FOLDER}/{path}")


@asynccontextmanager
async def library_tests(library: Library, store_dir: Path) -> AsyncIterator[LibraryTests]:
    """Builds the library's image and starts the sandbox."""
    settings = BubblewrapSandbox(output_limit_bytes=64 * 1024 * 1024)
    store = open_store(store_dir, settings)
    with tempfile.TemporaryDirectory(prefix="agentic-library-") as name:
        folder = Path(name)
        task = folder / f"{library.name}-original"
        write_task(TaskFolder(task.name, environment_files(library, library.files)), task)
        (result,) = await build_images([task], store, ImageSettings(), settings)
        rootfs = store.lookup(task / "environment")
        if rootfs is None:
            raise DataError(f"the image of {library.name} cannot be built: {result.reason}")
        provider = make_provider(settings, store)
        try:
            sandbox = await provider.acquire(SandboxSpec("authoring", f"{library.name}-tests", rootfs))
            probe = folder / PROBE
            probe.write_bytes(files("agentic.tasks.mutation").joinpath("probe.py").read_bytes())
            await sandbox.upload(probe, f"{PROBE_FOLDER}/{PROBE}")
            yield LibraryTests(sandbox, folder)
        finally:
            await provider.close()


def functions_of(run: TestRun) -> Mapping[tuple[str, int], list[str]]:
    """(file, first line) of each function → the tests that ran it."""
    found: dict[tuple[str, int], list[str]] = {}
    for name, called in run.calls.items():
        for function in called:
            found.setdefault(function, []).append(name)
    return found


def read_record(path: Path) -> TestRun | None:
    """A run that was written down, if it is there."""
    return TestRun.model_validate(json.loads(path.read_text())) if path.is_file() else None
