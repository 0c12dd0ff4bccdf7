"""What is taken of a folder whose list is large, moved or hostile: pure."""

import contextlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.rollout.errors import ChangesRefusedError
from agentic.rollout.grading.changes import compare, wanted_paths
from agentic.rollout.grading.collecting import read_listing
from agentic.rollout.grading.moving import find_sources, with_moved
from agentic.rollout.grading.protection import merge_json, merge_toml, undo
from agentic.rollout.grading.tree import Entry, Kind, Limits, Listing, Node, check_size, find_dropped, folders_above
from agentic.tasks.grading_policy import GradingPolicy

LIMITS = Limits(files=10, file_bytes=1000, total_bytes=5000)


def listing(contents, recent=()):
    """Of paths with their contents; the recent ones' are known."""
    entries = {"": Entry(Kind.FOLDER, 0o755, (0, 0))}
    nodes = {}
    for path, text in contents.items():
        for folder in folders_above(path):
            entries[folder] = Entry(Kind.FOLDER, 0o755, (0, 0), 0, folder in recent)
        is_recent = path in recent or any(folder in recent for folder in folders_above(path))
        entries[path] = Entry(Kind.FILE, 0o644, (0, 0), len(text), is_recent)
        if is_recent:
            nodes[path] = Node(Kind.FILE, 0o644, text.encode())
    return Listing("/app", entries, nodes)


def known(contents):
    """The untouched folder, all of it known."""
    return listing(contents, recent=contents)


def taken(before, agent, limits=LIMITS):
    """What the agent's folder holds afterwards."""
    untouched = known(before)
    sources = find_sources(untouched, agent, limits)
    changes, _ = compare(untouched, with_moved(agent, untouched, sources))
    found = dict(before)
    for change in changes:
        if change.new is None:
            found.pop(change.path, None)
        elif change.new.kind is Kind.FILE:
            found[change.path] = change.new.content.decode()
    return found


SOURCE = {"src/a.py": "one", "src/sub/b.py": "four", "src/__init__.py": "", "src/sub/__init__.py": "", "run.py": "r"}


def moved(tree, old, new):
    return {new + path.removeprefix(old) if path.startswith(f"{old}/") else path: text for path, text in tree.items()}


@pytest.mark.parametrize(
    ("old", "new"), [("src", "lib"), ("src", "deep/er/lib"), ("src/sub", "sub"), ("src/sub", "src/s")]
)
def test_the_files_of_a_folder_that_was_renamed_are_taken(old, new):
    after = moved(SOURCE, old, new)
    assert taken(SOURCE, listing(after)) == after


def test_what_was_changed_after_its_folder_was_renamed_is_as_it_was_changed():
    after = {**moved(SOURCE, "src", "lib"), "lib/a.py": "two", "lib/new.py": "n", "src/a.py": "import lib"}
    assert taken(SOURCE, listing(after, recent=("lib/a.py", "lib/new.py", "src/a.py"))) == after


def test_a_folder_that_took_anothers_place_is_taken():
    before = {"src/a.py": "one", "lib/a.py": "other"}
    assert taken(before, listing({"lib/a.py": "one"})) == {"lib/a.py": "one"}


def test_what_could_come_from_two_places_is_refused_by_name():
    before = {"x/a.py": "one", "y/a.py": "two"}
    with pytest.raises(ChangesRefusedError, match=r"'z/a.py' was moved with its folder, and 2 places"):
        taken(before, listing({"z/a.py": "one"}))
    with pytest.raises(ChangesRefusedError, match="0 places"):
        taken(before, listing({**before, "z/b.py": "new"}))
    assert taken({"x/a.py": "one", "y/a.py": "one"}, listing({"z/a.py": "one"})) == {"z/a.py": "one"}


def test_more_moved_files_than_the_limits_are_refused():
    before = {f"src/{n}.py": "x" for n in range(11)}
    with pytest.raises(ChangesRefusedError, match="11 files were moved"):
        taken(before, listing(moved(before, "src", "lib")))


@given(st.sets(st.sampled_from(sorted(SOURCE)), min_size=1), st.sampled_from(["src", "src/sub"]))
def test_no_renamed_folder_loses_a_file_in_silence(paths, old):
    before = {path: SOURCE[path] for path in paths}
    after = moved(before, old, "lib")
    with contextlib.suppress(ChangesRefusedError):
        assert taken(before, listing(after)) == after


def test_of_too_many_files_the_largest_new_folder_is_left_out():
    many = {f"out/deep/{n}": "" for n in range(20)}
    tree = {**many, "calc.py": "x", "few/a.py": "y", "pkg/b.py": "z"}
    agent = listing(tree, recent=("out", "out/deep", "calc.py", "few"))
    dropped = find_dropped(agent.entries, LIMITS)
    assert set(dropped.values()) == {"out/"}
    assert set(dropped) == {"out", "out/deep", *many}
    taken_of_it = Listing(
        "/app", agent.entries, {k: v for k, v in agent.nodes.items() if k not in dropped}, False, dropped
    )
    check_size(taken_of_it, LIMITS)
    changes, left_out = compare(known({"calc.py": "", "pkg/b.py": "z"}), taken_of_it)
    assert ([change.path for change in changes], left_out) == (["calc.py", "few/a.py"], ["out/"])


def test_what_the_task_has_is_not_left_out_in_silence():
    tree = {f"data/{n}": "new" for n in range(20)}
    agent = listing(tree, recent=("data",))
    dropped = find_dropped(agent.entries, LIMITS)
    with pytest.raises(ChangesRefusedError, match="the task's own would stand for it"):
        compare(known({"data/3": "old"}), Listing("/app", agent.entries, {}, False, dropped))


def test_compiled_code_is_the_images_whatever_was_built():
    agent = listing({"fast.so": "new", "calc.py": "x"}, recent=("fast.so", "calc.py"))
    dropped = find_dropped(agent.entries, LIMITS)
    nodes = {"calc.py": agent.nodes["calc.py"]}
    changes, left_out = compare(known({"fast.so": "old"}), Listing("/app", agent.entries, nodes, False, dropped))
    assert ([change.path for change in changes], left_out) == (["calc.py"], ["fast.so"])


def test_more_new_folders_than_the_limits_are_refused():
    entries = {f"d{n}": Entry(Kind.FOLDER, 0o755, (0, 0), 0, True) for n in range(11)}
    with pytest.raises(ChangesRefusedError, match="11 folders and links"):
        check_size(Listing("/app", entries), LIMITS)


def test_contents_are_asked_for_within_the_limits():
    before = {"large": "x" * 2000, **{f"old/{n}": "x" for n in range(20)}, "calc.py": "x"}
    wanted = wanted_paths(known(before), listing({"calc.py": "y"}, recent=("calc.py",)), (), LIMITS)
    assert (wanted[0], len(wanted), "large" in wanted) == ("calc.py", LIMITS.files, False)


@pytest.mark.parametrize("path", ["d" * 256, "/".join(["d" * 200] * 16), "é" * 130])
def test_a_path_longer_than_any_that_can_be_brought_is_refused(path):
    with pytest.raises(ChangesRefusedError, match="longer than"):
        read_listing(b"/app\nd 755 0 0 0 \0" + f"+d 755 0 0 0 {path}".encode() + b"\0\0", Limits())


def archive(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, kind, headers in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.pax_headers = kind, headers.pop("to", ""), headers
            made.addfile(member)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("a", tarfile.LNKTYPE, {"to": "nowhere"})],
        [("a", tarfile.LNKTYPE, {"to": "a"})],
        [
            ("x", tarfile.REGTYPE, {}),
            *((f"a{n}", tarfile.LNKTYPE, {"to": f"a{n - 1}" if n else "x"}) for n in range(3000)),
        ],
        [("a", tarfile.REGTYPE, {"GNU.sparse.map": "x,y", "GNU.sparse.size": "z"})],
        [("a", tarfile.REGTYPE, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})],
    ],
)
def test_an_archive_of_hostile_members_is_refused(members):
    with pytest.raises(ChangesRefusedError):
        read_listing(b"/app\nd 755 0 0 0 \0\0" + archive(*members), Limits())


def test_shared_configuration_that_is_long_or_in_many_places_goes_back_whole():
    long = {"setup.cfg": "[metadata]\n" + "# note\n" * 50_000, "a/setup.cfg": "[metadata]\n"}
    many = {f"f{n:03}/setup.cfg": "[metadata]\nname = x\n" for n in range(150)}
    kept, undone = undo(compare(known({}), known(long))[0], known({}), GradingPolicy())
    assert ([change.path for change in kept], undone) == (["a/setup.cfg"], ["setup.cfg"])
    kept, undone = undo(compare(known({}), known(many))[0], known({}), GradingPolicy())
    assert (len(kept), len(undone)) == (100, 50)


DEEP = 100_000


@pytest.mark.parametrize(
    "text", ["[" * DEEP, '{"a": ' * DEEP, '{"scripts": 5}', '{"scripts": [1]}', '{"a": ' + "1" * 5000 + "}"]
)
def test_no_package_json_breaks_grading(text):
    changes = [compare(known({}), known({"package.json": text}))[0][0]]
    assert undo(changes, known({}), GradingPolicy()) == ([], ["package.json"])


@pytest.mark.parametrize("text", ["a = " + "[" * DEEP, "a = " + "1" * 5000, "a.b" * 3 + " = {"])
def test_no_pyproject_breaks_grading(text):
    changes = [compare(known({}), known({"pyproject.toml": text}))[0][0]]
    assert undo(changes, known({}), GradingPolicy()) == ([], ["pyproject.toml"])
    assert merge_json('{"scripts": {"test": "x"}}', "{}") is not None
    assert merge_toml("", "a = 1\n") == "a = 1\n"
