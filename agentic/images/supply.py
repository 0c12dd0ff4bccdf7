"""Sees to it that each image of some tasks is in its registry, and says by which digest.

    found     it was there: under its content's tag, or under the name that the settings give it
    built     it was not; BuildKit made it and pushed it
    named     nobody could look, but nodes may have keys that we lack: it is used by its name
    failed    there is none, and why

Invariants:
- an image is built once for all tasks with the same environment, however many they are;
- an image of the same name that we made from another content does not count as there; one that somebody else made does,
  and is never pushed over. Ours are known by the tag of their content, which each repository that we push to gets;
- one image that cannot be had is one result, and the others go on; only what ails all of them is raised;
- a result is written when it is known and not before, so that being killed at any moment and starting again loses only
  what was under way, and that goes on too, since builds do not depend on us.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from agentic.errors import AgenticError, PermanentError
from agentic.images.buildctl import CACHE_TAG, BuildFailure, BuildOrder
from agentic.images.errors import BuilderRefusedError, BuilderUnavailableError, RateLimitedError
from agentic.images.reference import Reference
from agentic.images.remote import RemoteImage
from agentic.images.settings import ImageSettings
from agentic.sandbox.images import ENVIRONMENT_DIGITS

CONTENT_TAG = "env-"
"""Before the key of what an image was built from, as a tag beside the one that the settings give it."""
_OF_OURS = re.compile(rf"{CONTENT_TAG}[0-9a-f]{{{ENVIRONMENT_DIGITS}}}|{CACHE_TAG}")
"""Tags that nobody but we puts into a repository."""
LONGEST_PAUSE_SECONDS = 600.0
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", re.IGNORECASE | re.MULTILINE)

type Progress = Callable[[int, int, str], None]


class Lookup(Protocol):
    """What registries are asked; `Registry` is the real one. Both raise what `agentic.images.errors` lists."""

    async def digest_of(self, reference: Reference) -> str | None: ...

    async def tags_of(self, reference: Reference) -> list[str]: ...


class Builder(Protocol):
    """What builds and pushes."""

    async def prepare(self) -> None:
        """Before the first build; repeated calls cost nothing. Raises BuilderUnavailableError, BuilderRefusedError."""
        ...

    async def build(self, order: BuildOrder) -> BuildFailure | None:
        """One attempt; None when the image is in its registry. An order whose attempt is under way, because of a caller
        that was killed, is not started again. Raises what ails every build."""
        ...


@dataclass(frozen=True, slots=True)
class ImageResult:
    """What became of one image of one task."""

    task: str
    name: str
    """As the settings call it."""
    image: str
    """What sandboxes start from: by digest, or the name itself where nobody could look; empty when there is none."""
    status: Literal["found", "built", "named", "failed"]
    reason: str = ""
    seconds: float = 0.0
    may_pass: bool = False
    """Of what failed: whether another try may do."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Images with the same content, or the same name of somebody else's image."""

    images: tuple[RemoteImage, ...]
    key: str = ""
    """Empty for somebody else's image."""

    @property
    def first(self) -> Reference:
        return Reference.parse(self.images[0].name)

    def results(self, status: Literal["found", "built", "named", "failed"], image: str, **more: object) -> "Results":
        of_all = [ImageResult(one.task, one.name, image or one.name, status) for one in self.images]
        if status == "failed":
            of_all = [replace(result, image="") for result in of_all]
        return [replace(result, **more) for result in of_all]  # type: ignore[arg-type]


type Results = list[ImageResult]


class Supply:
    """One part of a task set."""

    def __init__(
        self,
        registry: Lookup,
        builder: Builder,
        settings: ImageSettings,
        bases: Mapping[str, str],
        *,
        on_result: Callable[[ImageResult], None],
        on_progress: Progress,
    ) -> None:
        """`bases`: names in FROM that stand for another image."""
        self._registry = registry
        self._builder = builder
        self._settings = settings
        self._bases = bases
        self._on_result = on_result
        self._on_progress = on_progress
        self._gate = asyncio.Semaphore(settings.parallelism)
        self._done, self._total = 0, 0

    async def see_to(self, images: Sequence[RemoteImage]) -> Results:
        """In any order; one result for each image."""
        results: Results = []
        self._total = len(images)

        async def see(group: _Group) -> None:
            made = await self._group(group)
            results.extend(made)
            for result in made:
                self._on_result(result)
            self._done += len(made)
            self._on_progress(self._done, self._total, f"{made[0].task}: {made[0].status} {made[0].reason}".rstrip())

        try:
            async with asyncio.TaskGroup() as running:
                for group in self._groups(images):
                    running.create_task(see(group))
        except* AgenticError as failures:
            raise failures.exceptions[0] from failures
        return results

    def _groups(self, images: Iterable[RemoteImage]) -> list[_Group]:
        groups: dict[str, list[RemoteImage]] = {}
        for image in images:
            key = self._key(image) if image.recipe else image.name or f"nameless {image.task}"
            groups.setdefault(key, []).append(image)
        return [_Group(tuple(found), key if found[0].recipe else "") for key, found in groups.items()]

    def _key(self, image: RemoteImage) -> str:
        """Its environment, and what our base stands for where it starts from it."""
        started = [self._bases[name] for name in _from(image.recipe) if name in self._bases] if image.recipe else []
        return image.key_with(started)

    async def _group(self, group: _Group) -> Results:
        started = time.monotonic()
        if not group.images[0].name:
            return group.results("failed", "", reason=group.images[0].reason)
        try:
            results = await (self._own(group) if group.key else self._foreign(group))
        except (BuilderRefusedError, BuilderUnavailableError):
            raise  # it ails all of them
        except PermanentError as error:
            results = group.results("failed", "", reason=str(error))
        return [replace(result, seconds=round(time.monotonic() - started, 1)) for result in results]

    async def _foreign(self, group: _Group) -> Results:
        """Somebody else's image. That we cannot look does not mean that nodes cannot pull."""
        try:
            digest = await self._registry.digest_of(group.first)
        except AgenticError as error:
            return group.results("named", "", reason=str(error))
        if digest is None:
            return group.results("failed", "", reason=f"{group.first}: there is no such image")
        return group.results("found", _pinned(group.first, digest))

    async def _own(self, group: _Group) -> Results:
        for content in self._contents(group):
            digest = await self._registry.digest_of(content)
            if digest is not None:
                return group.results("found", _pinned(content, digest))
        found, missing = await self._by_name(group)
        return found + (await self._build(missing) if missing else [])

    def _contents(self, group: _Group) -> list[Reference]:
        """The names that say what the images were built from, one in each repository."""
        names = dict.fromkeys(Reference.parse(image.name) for image in group.images)
        says_it = [group.key in (name.tag, name.repository) for name in names]
        content_tag = f"{CONTENT_TAG}{group.key}"
        found = [name if says else name.tagged(content_tag) for name, says in zip(names, says_it, strict=True)]
        return list(dict.fromkeys(found))

    async def _by_name(self, group: _Group) -> tuple[Results, _Group | None]:
        """Those that somebody else has put there under the settings' own name, and the others."""
        found: Results = []
        missing: list[RemoteImage] = []
        contents = self._contents(group)
        for image in group.images:
            name = Reference.parse(image.name)
            digest = None if name in contents else await self._registry.digest_of(name)
            if digest is None or await self._is_of_ours(name):
                missing.append(image)
            else:
                found += _Group((image,), group.key).results("found", _pinned(name, digest))
        return found, _Group(tuple(missing), group.key) if missing else None

    async def _is_of_ours(self, name: Reference) -> bool:
        """Then it was made from another content: its own is not there."""
        return any(_OF_OURS.fullmatch(tag) for tag in await self._registry.tags_of(name))

    async def _build(self, group: _Group) -> Results:
        await self._prepare()
        order = self._order(group)
        failure = await self._attempts(order)
        if failure is not None:
            return group.results("failed", "", reason=failure.reason, may_pass=failure.may_pass)
        content = order.names[0]
        digest = await self._registry.digest_of(content)
        if digest is None:
            reason = f"{content} was pushed and is not there: look at its registry"
            return group.results("failed", "", reason=reason, may_pass=True)
        return group.results("built", _pinned(content, digest))

    async def _prepare(self) -> None:
        """What stands in the way of it, such as a right that our account lacks, is no single image's trouble."""
        try:
            await self._builder.prepare()
        except PermanentError as error:
            raise BuilderRefusedError(str(error)) from error

    def _order(self, group: _Group) -> BuildOrder:
        recipe = group.images[0].recipe
        if recipe is None:
            raise ValueError("a group without a recipe is not built")
        names = dict.fromkeys([*self._contents(group), *(Reference.parse(image.name) for image in group.images)])
        used = {name: self._bases[name] for name in _from(recipe) if name in self._bases}
        return BuildOrder(group.key, group.images[0].task, tuple(names), recipe, used)

    async def _attempts(self, order: BuildOrder) -> BuildFailure | None:
        """None when it was built, else why it was not. Raises RateLimitedError."""
        pause, attempt, limited_since = self._settings.retry_seconds, 1, 0.0
        while True:
            async with self._gate:
                failure = await self._builder.build(order)
            if failure is None or not failure.may_pass:
                return failure
            if failure.is_limited:
                limited_since = limited_since or time.monotonic()
                if time.monotonic() + pause > limited_since + self._settings.registry.patience_seconds:
                    raise RateLimitedError(f"{order.task}: {failure.reason}")
            elif attempt == self._settings.attempts:
                return replace(failure, reason=f"{failure.reason} (at each of {attempt} attempts)")
            else:
                attempt += 1
            self._on_progress(self._done, self._total, f"{order.task}: again in {pause:.0f} s: {failure.reason}")
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _pinned(name: Reference, digest: str) -> str:
    return str(name.pinned(digest))


def _from(recipe: Path) -> list[str]:
    """What a Dockerfile starts from."""
    return _FROM.findall((recipe / "Dockerfile").read_text("utf-8", errors="replace"))
