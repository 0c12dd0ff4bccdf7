"""The world of the benchmark: one small task, sandboxes that only wait, and a model that knows what it says.

Real are Harbor's trials, our runner, verifier, sessions, records and the proxy behind its ports. Fake are what a
machine would be busy with: a sandbox is the double of `agentic/sandbox/memory.py` with delays that pass for real,
answering what graders ask (the working folder's list, the tests) without a shell; a reply comes after a delay. The
outcome of a rollout follows from its number: two of three are solved.
"""

import asyncio
import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentic.proxy import Renderer, ScriptedReply
from agentic.sandbox.base import Command, ExecResult, Sandbox, SandboxImage, SandboxSpec
from agentic.sandbox.errors import ImageMissingError, SandboxLostError, SandboxStartError, SandboxTransferError
from agentic.sandbox.memory import MemoryProvider, MemorySandbox
from agentic.sandbox.rootfs import ImageConfig, Rootfs

FOLDER = "/testbed"
WRONG, RIGHT = b"1 - 2\n", b"1 + 2\n"
TURNS = 3
TASK, UNLUCKY = "calc", "calc-unlucky"
LOOK, FIX, MISS, SUBMIT = ("cat calc.txt", "echo 1 + 2 > calc.txt", "echo 3 > calc.txt", "submit")

FAULTS = ("start", "agent", "grading", "transfer", "verifier", "engine", "capture", "image")
"""Kinds of infrastructure failures, one of ten rollouts each: rollout n has number n % 10 of this list."""
FAULT_NAMES = {
    "start": "SandboxStartError",
    "agent": "SandboxLostError",
    "grading": "SandboxLostError",
    "transfer": "SandboxTransferError",
    "verifier": "RewardFileNotFoundError",
    "engine": "ModelUnavailableError",
    "capture": "capture incomplete",
    "image": "ImageMissingError",
}
"""What a record has to call each."""


@dataclass(frozen=True, slots=True)
class Delays:
    """What a trial waits for, in seconds."""

    start: float = 1.0
    command: float = 0.1
    reply: float = 0.5


def rollout_number(name: str) -> tuple[int, int]:
    """Number and attempt in `r12-1`, however a sandbox or a session is called after it."""
    found = re.match(r"r(\d+)-(\d+)", name)
    if found is None:
        raise ValueError(f"{name!r} is no name of a rollout here")
    return int(found[1]), int(found[2])


def fault_of(name: str, faulty: bool) -> str | None:
    """The fault that the trial of this name meets: on its first attempt, as its number says."""
    number, attempt = rollout_number(name)
    place = number % 10
    return FAULTS[place] if faulty and attempt == 1 and place < len(FAULTS) else None


def is_solved(number: int) -> bool:
    """Whether the rollout of this number repairs the file."""
    return number % 3 != 0


class WaitingProvider(MemoryProvider):
    """Sandboxes that take their time, and fail where a rollout's number says so."""

    def __init__(self, delays: Delays, faulty: bool) -> None:
        super().__init__()
        self.delays, self.faulty = delays, faulty
        self.most = 0

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        await asyncio.sleep(self.delays.start)
        if fault_of(spec.sandbox_id, self.faulty) == "start":
            raise SandboxStartError("the benchmark starts no sandbox here")
        sandbox = WaitingSandbox(self, spec)
        self.sandboxes[f"{spec.run_id}/{spec.sandbox_id}"] = sandbox
        self.most = max(self.most, len(self.sandboxes))
        return sandbox


class WaitingSandbox(MemorySandbox):
    """One of them."""

    def __init__(self, provider: WaitingProvider, spec: SandboxSpec) -> None:
        super().__init__(provider, spec)
        self._delays = provider.delays
        self._fault = fault_of(spec.sandbox_id, provider.faulty)
        self._is_grading = "-grading" in spec.sandbox_id

    async def exec(self, command: Command, **options: Any) -> ExecResult:
        await asyncio.sleep(self._delays.command)
        self._require_alive()
        asked = command if isinstance(command, str) else " ".join(command)
        if self._fault == ("grading" if self._is_grading else "agent"):
            self.lose()
            raise SandboxLostError("the benchmark lost it here")
        if self._fault == "transfer" and self._is_grading:
            raise SandboxTransferError("the benchmark broke this transfer")
        if "test.sh" in asked:
            return self._tests(asked)
        if "newerct" in asked:
            return _ended(self._listing())
        if "tar -x" in asked:
            self._unpack(options.get("stdin", b""))
            return _ended(b"")
        if asked.startswith(("mkdir", "chmod", "rm ")) or not isinstance(command, str):
            return _ended(b"")
        return await super().exec(command, **options)

    def _tests(self, asked: str) -> ExecResult:
        """The task's tests, asked by our verifier (which reads the reward from the output) or by Harbor's."""
        if self._fault == "verifier":
            return _ended(b"")
        content = self.files[f"{FOLDER}/calc.txt"].content
        reward = b"1\n" if content == RIGHT else b"0\n"
        self.write("/logs/verifier/reward.txt", reward)
        return _ended(b"quiet\ntext %snone\n" % reward if "echo quiet" in asked else b"")

    def _listing(self) -> bytes:
        """What the script of `agentic/rollout/grading/collecting.py` answers: entries, then an archive of what changed,
        or of all where all was asked for."""
        return _listing(self.files[f"{FOLDER}/calc.txt"].content, not self._is_grading)

    def _unpack(self, stream: bytes) -> None:
        """The agent's changes, which lie below `w/` in what is brought for grading."""
        for name, content in _members(stream):
            self.write(f"{FOLDER}/{name}", content)


@lru_cache(maxsize=8)
def _listing(content: bytes, is_recent: bool) -> bytes:
    """Kept, since a real sandbox would have its own processor time for it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("calc.txt")
        member.size, member.mode = len(content), 0o644
        archive.addfile(member, io.BytesIO(content))
    mark = "+" if is_recent else ""
    rows = f"d 755 0 0 0 \0{mark}f 644 0 0 {len(content)} calc.txt"
    return f"{FOLDER}\n{rows}\0\0".encode() + buffer.getvalue()


@lru_cache(maxsize=8)
def _members(stream: bytes) -> list[tuple[str, bytes]]:
    """Likewise."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None and member.name.startswith("w/"):
                found.append((member.name[2:], content.read()))
    return found


def _ended(output: bytes) -> ExecResult:
    return ExecResult(0, output, b"")


class OneImage:
    """The root folder of both tasks; that of the second one is missing for so many first looks."""

    def __init__(self, layer: Path, missing: int) -> None:
        self._rootfs = Rootfs("benchmark", (layer,), ImageConfig(workdir=FOLDER))
        self.missing = missing

    def find(self, task: str, environment_dir: Path, docker_image: str | None) -> SandboxImage:
        """See `ImageSource.find`."""
        if self.missing and environment_dir.parent.name == UNLUCKY:
            self.missing -= 1
            raise ImageMissingError("the benchmark has no image here")
        return self._rootfs


def write_world(folder: Path) -> Path:
    """Makes both tasks; returns the layer of their image."""
    layer = folder / "layer"
    (layer / "testbed").mkdir(parents=True)
    (layer / "testbed" / "calc.txt").write_bytes(WRONG)
    for name in (TASK, UNLUCKY):
        _write_task(folder / name)
    return layer


def task_of(number: int) -> str:
    """The task of the rollout of this number; they differ in their image only."""
    return UNLUCKY if FAULTS.index("image") == number % 10 else TASK


def _write_task(task: Path) -> None:
    for name in ("environment", "tests"):
        (task / name).mkdir(parents=True)
    (task / "task.toml").write_text('schema_version = "1.4"\n[task]\nname = "benchmark/calc"\n[environment]\n')
    (task / "instruction.md").write_text("Fix calc.txt.\n")
    (task / "environment" / "Dockerfile").write_text("FROM base\n")
    (task / "tests" / "test.sh").write_text("#!/bin/sh\n")
    (task / "tests" / "test.sh").chmod(0o755)


def make_script(renderer: Renderer, delay: float, faulty: bool) -> Any:
    """What the model of a session says in its n-th turn."""
    end = renderer.stop_token_ids[0]
    replies: Mapping[str, tuple[int, ...]] = {
        command: (*renderer.encode(f"```bash\n{command}\n```"), end) for command in (LOOK, FIX, MISS, SUBMIT)
    }

    def script(prompt_ids: Any, _sampling: Any, request_id: str) -> ScriptedReply:
        number, _ = rollout_number(request_id)
        fault = fault_of(request_id, faulty)
        turn = list(prompt_ids).count(end) // 2
        ids = replies[(LOOK, FIX if is_solved(number) else MISS, SUBMIT)[turn]]
        lost = (*(-0.5 for _ in ids[1:]), None) if fault == "capture" else None
        return ScriptedReply(ids, logprobs=lost, first_delay_seconds=delay, fail_after=0 if fault == "engine" else None)

    return script
