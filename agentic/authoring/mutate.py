"""Makes verified repair tasks from a library: one edit each, noticed by tests that passed before.

    OUT/<task id>/            Harbor tasks, each seen to earn 1.0 with its solution and 0.0 untouched
    OUT/.work/recipe.json     what they are made from: once there are tests' outcomes, another package, version, seed or
                              requirement is refused
    OUT/.work/original.json   what the library's tests say without an edit, in two runs
    OUT/.work/attempts.jsonl  one line for each edit that was tried, and what became of it

Which edits are tried, and in which order, follows from the library, its tests and the seed alone; a call that was
killed, or a larger `count`, goes on behind the last attempt. Functions take turns, so that one long function does not
fill a set. An edit is kept when tests that passed in both runs fail by it; an endless loop is not kept, since it would
cost every rollout the verifier's whole time.
"""

import hashlib
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from agentic import json_lines
from agentic.authoring.check import check_tasks
from agentic.authoring.library_tests import LibraryTests, TestRun, functions_of, library_tests
from agentic.errors import TransientError
from agentic.files import discard, publish_folder, write_text
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import write_task
from agentic.tasks.mutation.edits import Edit, apply_edit, find_edits
from agentic.tasks.mutation.library_task import Library, LibraryMutant, is_of_tests, make_library_task

ORIGINAL_SECONDS = 900.0
"""For one run of all tests without an edit."""
SLOWER, LEAST_SECONDS = 5.0, 60.0
"""An edited library's tests may take so many times as long as the original's, rounded up to whole minutes."""

SAID = 3
"""Failures that are told of a library of which no test passes."""

type OnProgress = Callable[[int, int, str], None]


class Attempt(BaseModel):
    """What became of one edit."""

    model_config = ConfigDict(frozen=True)

    key: str
    result: Literal["kept", "unnoticed", "no record", "breaks everything", "not verified"]
    task: str = ""
    seconds: float = 0.0


class Yield(BaseModel):
    """What a set of tasks took, over all calls that made it."""

    model_config = ConfigDict(frozen=True)

    package: str
    version: str
    seed: int
    tests: int
    """That pass without an edit."""
    functions: int
    """That tests run and that have an edit."""
    edits: int
    """That could be tried."""
    tried: dict[str, int]
    """Result → edits."""
    tasks: int
    kept_share: float
    """Tasks per edit tried."""
    seconds: float
    """Trying and verifying, without fetching and building."""
    seconds_per_task: float


@dataclass(frozen=True)
class Recipe:
    """What a set is made from."""

    library: Library
    count: int
    seed: int
    out: Path
    store_dir: Path


@dataclass(frozen=True)
class Candidate:
    """An edit of a function that tests run."""

    path: str
    edit: Edit
    tests: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.path}:{self.edit.key}"

    def task_id(self, package: str) -> str:
        function = re.sub(r"[^A-Za-z0-9]+", "-", self.edit.function).strip("-").lower()[:40]
        return f"{package}-{function}-{self.edit.kind}-{hashlib.sha256(self.key.encode()).hexdigest()[:6]}"


async def make_tasks(recipe: Recipe, on_progress: OnProgress) -> Yield:
    """Make what is missing of `count` tasks, and say what the whole set took."""
    work = recipe.out / ".work"
    _claim(recipe, work)
    attempts = [Attempt.model_validate(line) for line in json_lines.read(work / "attempts.jsonl").rows]
    async with AsyncExitStack() as stack:
        tests = await stack.enter_async_context(library_tests(recipe.library, recipe.store_dir))
        original = await _original(tests, work / "original.json", on_progress)
        candidates = list_candidates(recipe.library, original, recipe.seed)
        known = {attempt.key for attempt in attempts}
        search = _Search(recipe, tests, original, on_progress)
        waiting = iter([candidate for candidate in candidates if candidate.key not in known])
        while (kept := sum(attempt.result == "kept" for attempt in attempts)) < recipe.count:
            on_progress(kept, recipe.count, f"{kept} of {recipe.count} tasks from {len(attempts)} edits")
            found = await search.next_tasks(waiting, recipe.count - kept, attempts)
            if not found:
                break
    on_progress(kept, recipe.count, f"{kept} of {recipe.count} tasks from {len(attempts)} edits")
    return _summarize(recipe, original, candidates, attempts)


class _Search:
    """Tries edits; what it learns goes to the list of attempts and to its file."""

    def __init__(self, recipe: Recipe, tests: LibraryTests, original: TestRun, on_progress: OnProgress) -> None:
        self._recipe = recipe
        self._work = work = recipe.out / ".work"
        self._tests = tests
        self._passing = original.passed()
        self._seconds = LEAST_SECONDS * math.ceil(SLOWER * _seconds_of(work / "original.json") / LEAST_SECONDS)
        self._on_progress = on_progress

    async def next_tasks(self, waiting: Iterator[Candidate], count: int, attempts: list[Attempt]) -> int:
        """Up to `count` noticed edits, verified together; how many edits were tried."""
        before = len(attempts)
        noticed: list[tuple[Candidate, Path, float]] = []
        for candidate in waiting:
            started = time.monotonic()
            outcome = await self._try(candidate)
            seconds = round(time.monotonic() - started, 3)
            if isinstance(outcome, LibraryMutant):
                noticed.append((candidate, self._write(candidate, outcome), seconds))
            else:
                self._record(Attempt(key=candidate.key, result=outcome, seconds=seconds), attempts)
            line = f"{len(attempts)} edits tried, {len(noticed)} noticed; last: {candidate.edit.function}"
            self._on_progress(self._recipe.count - count, self._recipe.count, line)
            if len(noticed) == count:
                break
        if noticed:
            await self._verify(noticed, attempts)
        return len(attempts) - before

    async def _try(
        self, candidate: Candidate
    ) -> LibraryMutant | Literal["unnoticed", "no record", "breaks everything"]:
        original = self._recipe.library.files[candidate.path].decode()
        source = apply_edit(original, candidate.edit)
        await self._tests.write(candidate.path, source)
        try:
            quick = await self._tests.run(self._seconds, candidate.tests)
            if quick is not None and set(candidate.tests) <= quick.passed():
                return "unnoticed"
            run = await self._tests.run(self._seconds) if quick is not None else None
        finally:
            await self._tests.write(candidate.path, original)
        if run is None:
            return "no record"
        failing = sorted(name for name in self._passing - run.passed() if run.outcomes.get(name) == "failed")
        kept = sorted(self._passing & run.passed())
        if not kept or len(failing) + len(kept) < len(self._passing):
            return "breaks everything"
        if not failing:
            return "unnoticed"
        messages = {name: scrub(run.messages.get(name, "")) for name in failing}
        return LibraryMutant(candidate.path, candidate.edit, source, tuple(failing), tuple(kept), messages)

    def _write(self, candidate: Candidate, mutant: LibraryMutant) -> Path:
        folder = self._work / "candidates" / candidate.task_id(self._recipe.library.name)
        discard(folder)
        write_task(make_library_task(self._recipe.library, mutant, folder.name, self._seconds), folder)
        return folder

    async def _verify(self, noticed: Sequence[tuple[Candidate, Path, float]], attempts: list[Attempt]) -> None:
        folders = [folder for _, folder, _ in noticed]
        started = time.monotonic()
        reports = await check_tasks(folders, self._recipe.store_dir, BubblewrapSandbox())
        share = (time.monotonic() - started) / len(noticed)
        for (candidate, folder, seconds), report in zip(noticed, reports, strict=True):
            if report.verdict == "unjudged":
                raise TransientError(
                    f"{folder.name} could not be verified: {report.problems[0]}: run the command again"
                )
            good = report.verdict == "good"
            if good:
                publish_folder(folder, self._recipe.out / folder.name)
            result: Literal["kept", "not verified"] = "kept" if good else "not verified"
            self._record(
                Attempt(key=candidate.key, result=result, task=folder.name, seconds=round(seconds + share, 3)), attempts
            )

    def _record(self, attempt: Attempt, attempts: list[Attempt]) -> None:
        attempts.append(attempt)
        json_lines.append(self._work / "attempts.jsonl", [attempt.model_dump_json()])


def list_candidates(library: Library, original: TestRun, seed: int) -> list[Candidate]:
    """All edits of functions that passing tests run, in the order in which they are tried."""
    passing = original.passed()
    covered = functions_of(original)
    turns: list[list[Candidate]] = []
    for path in sorted({path for path, _ in covered} & set(library.files)):
        if is_of_tests(path) or not path.endswith(".py"):
            continue
        by_function: dict[int, list[Edit]] = {}
        for edit in find_edits(library.files[path].decode()):
            by_function.setdefault(edit.first_line, []).append(edit)
        for line, edits in sorted(by_function.items()):
            if names := sorted(passing.intersection(covered.get((path, line), ()))):
                random.Random(f"{seed}/{path}/{line}").shuffle(edits)
                turns.append([Candidate(path, edit, tuple(names)) for edit in edits])
    random.Random(seed).shuffle(turns)
    return [candidate for turn in zip_longest(*turns) for candidate in turn if candidate is not None]


def scrub(message: str) -> str:
    """A failure's line without what differs from run to run, so that a set can be made again."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", re.sub(r"/tmp/[\w./-]+", "/tmp/...", message))


def _claim(recipe: Recipe, work: Path) -> None:
    library, path = recipe.library, work / "recipe.json"
    source, wheels = (
        hashlib.sha256(repr(sorted(part.items())).encode()).hexdigest()[:16] for part in (library.files, library.wheels)
    )
    wanted = f"{library.name} {library.version} seed {recipe.seed} source {source} wheels {wheels}\n"
    if (work / "original.json").is_file() and path.is_file() and path.read_text() != wanted:
        raise DataError(
            f"{recipe.out} holds tasks of {path.read_text().strip()}, not of {wanted.strip()}: give another folder by "
            "--out, or delete it"
        )
    write_text(path, wanted)


async def _original(tests: LibraryTests, path: Path, on_progress: OnProgress) -> TestRun:
    """The tests' outcomes without an edit: a test that does not pass twice is no measure of anything."""
    if path.is_file():
        return TestRun.model_validate_json(path.read_bytes())
    on_progress(0, 1, "running the library's own tests twice")
    started = time.monotonic()
    first = await tests.run(ORIGINAL_SECONDS, trace=True)
    seconds = time.monotonic() - started
    second = await tests.run(ORIGINAL_SECONDS)
    if first is None or second is None:
        raise DataError("the library's own tests crash or take too long: --with names what they need besides pytest")
    stable = first.passed() & second.passed()
    if not stable:
        failures = "; ".join([*dict.fromkeys(first.messages.values())][:SAID]) or "none was found"
        raise DataError(f"none of the library's own tests passes ({failures}): --with names what they need")
    outcomes = {name: "passed" if name in stable else "other" for name in first.outcomes}
    write_text(path, TestRun(outcomes=outcomes, calls=first.calls).model_dump_json())
    write_text(path.with_suffix(".seconds"), f"{seconds:.3f}\n")
    return TestRun.model_validate_json(path.read_bytes())


def _seconds_of(path: Path) -> float:
    return float(path.with_suffix(".seconds").read_text())


def _summarize(recipe: Recipe, original: TestRun, candidates: list[Candidate], attempts: list[Attempt]) -> Yield:
    tried = Counter(attempt.result for attempt in attempts)
    seconds = sum(attempt.seconds for attempt in attempts)
    kept = tried["kept"]
    return Yield(
        package=recipe.library.name,
        version=recipe.library.version,
        seed=recipe.seed,
        tests=len(original.passed()),
        functions=len({(candidate.path, candidate.edit.first_line) for candidate in candidates}),
        edits=len(candidates),
        tried={str(result): number for result, number in sorted(tried.items())},
        tasks=kept,
        kept_share=round(kept / len(attempts), 3) if attempts else 0.0,
        seconds=round(seconds, 1),
        seconds_per_task=round(seconds / kept, 1) if kept else 0.0,
    )
