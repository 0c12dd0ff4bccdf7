"""Undoes what an agent changed of its tests' surroundings, and leaves the rest as it is. Pure.

A protected path goes back to what the untouched folder holds there; a new one is not taken. Files that hold the
configuration of tests beside other things (`setup.cfg`, `pyproject.toml`, `package.json`) keep the agent's changes but
for the sections of test runners, which come from the untouched file; where that cannot be told apart, the whole file
goes back. A folder that holds what stays is not removed or replaced either: of the rest in it, each file goes by
itself. What was undone is named.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from agentic.rollout.grading.changes import Change
from agentic.rollout.grading.ini import sections_of_tests
from agentic.rollout.grading.tree import Entry, Kind, Listing, Node, folders_above
from agentic.tasks.grading_policy import SHADOWS, GradingPolicy, matches

TEST_SECTIONS = re.compile(
    r"(tool[:.])?(pytest|coverage|tox|nosetests|unittest|hypothesis)([:.].*)?|aliases|test", re.I
)


SHARED_BYTES = 256 * 1024
SHARED_FILES = 100
"""The longest file whose sections are told apart, and how many are: what cannot be read quickly goes back whole."""


def undo(changes: Iterable[Change], untouched: Listing, policy: GradingPolicy) -> tuple[list[Change], list[str]]:
    """The changes that count, and the paths of what was undone."""
    kept: list[Change] = []
    undone: list[str] = []
    changes = list(changes)
    held = _holding_folders(changes, untouched, policy)
    shared = [change.path for change in changes if change.path.rpartition("/")[2] in MERGES]
    for change in changes:
        displaces = change.path in held or _stands_on_what_stays(change, untouched, policy)
        merged = None if displaces else _merged(change, untouched, policy, shared[SHARED_FILES:])
        if merged is not change:
            undone.append(change.path)
        if merged is not None:
            kept.append(merged)
    return kept, undone


def _holding_folders(changes: Iterable[Change], untouched: Listing, policy: GradingPolicy) -> set[str]:
    """The untouched folders that a change would remove or replace, and that hold what has to stay."""
    going = {change.path for change in changes if _is(Kind.FOLDER, change.path, untouched)}
    held: set[str] = set()
    if going:
        for path in untouched.entries:
            above = going.intersection(folders_above(path)) - held
            if above and not _is(Kind.FOLDER, path, untouched) and _stays(path, policy):
                held |= above
    return held


def _stands_on_what_stays(change: Change, untouched: Listing, policy: GradingPolicy) -> bool:
    """Whether a new path needs a folder where the untouched tree has a file or link that has to stay."""
    places = [place for place in folders_above(change.path) if place in untouched.entries]
    return change.new is not None and any(
        not _is(Kind.FOLDER, place, untouched) and _stays(place, policy) for place in places
    )


def _is(kind: Kind, path: str, untouched: Listing) -> bool:
    entry = untouched.entries.get(path)
    return entry is not None and entry.kind is kind


def _stays(path: str, policy: GradingPolicy) -> bool:
    """Whether an untouched file or link may not be removed."""
    if policy.protects(path):
        return True
    is_shared = path.rpartition("/")[2] in MERGES
    return is_shared and policy.uses_defaults and not matches(path, policy.allowed)


def _merged(change: Change, untouched: Listing, policy: GradingPolicy, too_many: Sequence[str]) -> Change | None:
    if policy.protects(change.path):
        return None
    if not policy.uses_defaults or matches(change.path, policy.allowed):
        return change
    if change.new is not None and is_shadow(change.path, untouched.entries):
        return None
    merge = MERGES.get(change.path.rpartition("/")[2])
    if merge is None:
        return change
    return None if change.path in too_many else _with_sections(change, merge)


def is_shadow(path: str, entries: Mapping[str, Entry]) -> bool:
    """Whether a new path gives the name of a test runner, or of a module that it imports from the standard library, to
    something else, where imports may begin: in a folder that the untouched tree does not know as a package."""
    for place in (*folders_above(path), path):
        folder, _, name = place.rpartition("/")
        stem = name.partition(".")[0]
        if place in entries or not (stem in SHADOWS or stem.startswith("pytest_")):
            continue
        if f"{folder}/__init__.py".lstrip("/") not in entries:
            return True
    return path not in entries and _is_standard(path, entries)


def _is_standard(path: str, entries: Mapping[str, Entry]) -> bool:
    """In a new folder it is none: no imports begin there, and packages often have such modules of their own."""
    place = path.removesuffix("/__init__.py")
    folder, _, name = place.rpartition("/")
    is_module = place != path or name.endswith(".py")
    begins_imports = (not folder or folder in entries) and f"{folder}/__init__.py".lstrip("/") not in entries
    return is_module and begins_imports and name.removesuffix(".py") in sys.stdlib_module_names


Merge = Callable[[str, str], str | None]
"""Given the untouched text and the agent's: the agent's with the untouched test sections; None when they can't be told
apart."""


def _with_sections(change: Change, merge: Merge) -> Change | None:
    """Itself when nothing had to be undone; None when all of it had to."""
    new = change.new
    if new is None:
        return None
    if new.kind is not Kind.FILE or len(new.content) > SHARED_BYTES:
        return None
    before = change.old.content if change.old is not None and change.old.kind is Kind.FILE else b""
    try:
        text = merge(before.decode(), new.content.decode())
    except (UnicodeDecodeError, RecursionError):
        return None
    if text is None:
        return None
    content = text.encode()
    if content == new.content:
        return change
    if change.old is not None and content == before and new.mode == change.old.mode:
        return None
    return replace(change, new=Node(Kind.FILE, new.mode, content))


def merge_ini(before: str, after: str) -> str | None:
    """`setup.cfg`: by its section headers; the result has to say of the tests what the untouched one says, to each of
    its readers."""
    merged = _merge_sections(before, after, re.compile(r"^\[(?P<name>[^\]\n]+)\]", re.MULTILINE))
    said = sections_of_tests(merged, _is_of_tests)
    return merged if said is not None and said == sections_of_tests(before, _is_of_tests) else None


def merge_toml(before: str, after: str) -> str | None:
    """`pyproject.toml`: by its tables; both texts have to be TOML, and the result has to say of the tests what the
    untouched one says: a runner's keys may also be written dotted or inline."""
    merged = _merge_sections(
        before, after, re.compile(r"^[ \t]*\[\[?(?P<name>[^\]\n]+)\]\]?[ \t]*(#.*)?$", re.MULTILINE)
    )
    try:
        old, new = tomllib.loads(before), tomllib.loads(merged or "")
    except ValueError:  # No TOML; or a number of more digits than Python reads.
        return None
    return merged if _test_keys(old) == _test_keys(new) else None


def _test_keys(config: Mapping[str, object]) -> dict[str, object]:
    tool, project = config.get("tool"), config.get("project")
    tools = tool if isinstance(tool, dict) else {}
    points = project.get("entry-points") if isinstance(project, dict) else None
    found = {name: value for name, value in tools.items() if TEST_SECTIONS.fullmatch(f"tool.{name}")}
    if isinstance(points, dict) and "pytest11" in points:
        found["pytest11"] = points["pytest11"]
    return found


def merge_json(before: str, after: str) -> str | None:
    """`package.json`: the test script and the runners' own keys come from the untouched file."""
    try:
        old, new = json.loads(before or "{}"), json.loads(after)
    except ValueError:
        return None
    if not all(isinstance(part, dict) and isinstance(part.get("scripts") or {}, dict) for part in (old, new)):
        return None
    changed = dict(new)
    for key in ("jest", "mocha", "ava", "vitest"):
        _put(changed, key, old)
    scripts, theirs = dict(new.get("scripts") or {}), dict(old.get("scripts") or {})
    for key in {name for name in (*scripts, *theirs) if "test" in name}:
        _put(scripts, key, theirs)
    if scripts or "scripts" in new:
        changed["scripts"] = scripts
    return after if changed == new else json.dumps(changed, indent=2) + "\n"


def _put(target: dict[str, object], key: str, source: Mapping[str, object]) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _merge_sections(before: str, after: str, header: re.Pattern[str]) -> str:
    """The agent's sections in its order, without its test sections; then the untouched test sections."""
    old = [text for name, text in _sections(before, header) if _is_of_tests(name)]
    if old == [text for name, text in _sections(after, header) if _is_of_tests(name)]:
        return after
    kept = "".join(text for name, text in _sections(after, header) if not _is_of_tests(name))
    gap = "" if not kept or kept.endswith("\n") else "\n"
    return kept + gap + "".join(old)


def _sections(text: str, header: re.Pattern[str]) -> list[tuple[str, str]]:
    found = list(header.finditer(text))
    starts = [0, *(match.start() for match in found), len(text)]
    names = ["", *(match["name"].strip().replace('"', "").replace("'", "") for match in found)]
    return [(name, text[starts[i] : starts[i + 1]]) for i, name in enumerate(names) if starts[i] < starts[i + 1]]


def _is_of_tests(name: str) -> bool:
    return TEST_SECTIONS.fullmatch(name) is not None or "pytest11" in name


MERGES: Mapping[str, Merge] = {"setup.cfg": merge_ini, "pyproject.toml": merge_toml, "package.json": merge_json}
"""By a file's name, wherever it lies."""
