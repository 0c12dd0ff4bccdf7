"""What is taken of an agent's folder, and what is undone of it: pure, on random trees and on hostile listings."""

import configparser
import contextlib
import io
import shutil
import subprocess
import time

import iniconfig
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.rollout.errors import ChangesRefusedError
from agentic.rollout.grading.changes import Change, compare, removed_paths
from agentic.rollout.grading.collecting import read_listing
from agentic.rollout.grading.patch import make_patch
from agentic.rollout.grading.protection import merge_ini, merge_toml, undo
from agentic.rollout.grading.tree import Entry, Kind, Limits, Listing, Node, check_size, find_dropped
from agentic.tasks.grading_policy import GradingPolicy, read_policy

NAMES = ("a", "b.py", "src/c.py", "src/d/e.txt", "tests/test_x.py", "conftest.py", "setup.cfg")
texts = st.text(st.sampled_from("ab\n"), max_size=12)
trees = st.dictionaries(st.sampled_from(NAMES), texts)


def listing(tree, recent=True):
    entries = {"": Entry(Kind.FOLDER, 0o755, (0, 0))}
    nodes = {}
    for path, text in tree.items():
        parts = path.split("/")
        for end in range(1, len(parts)):
            entries["/".join(parts[:end])] = Entry(Kind.FOLDER, 0o755, (0, 0))
        entries[path] = Entry(Kind.FILE, 0o644, (0, 0), len(text), recent)
        nodes[path] = Node(Kind.FILE, 0o644, text.encode())
    return Listing("/app", entries, nodes)


def applied(tree, changes):
    found = dict(tree)
    for change in changes:
        if change.new is None:
            found.pop(change.path, None)
        elif change.new.kind is Kind.FILE:
            found[change.path] = change.new.content.decode()
    return found


@given(trees, trees)
def test_the_changes_turn_the_untouched_tree_into_the_agents(before, after):
    changes, left_out = compare(listing(before), listing(after))
    assert applied(before, changes) == after
    assert left_out == []
    assert all(change.old != change.new for change in changes)


@given(trees, trees)
def test_what_is_undone_stays_as_it_was_and_all_else_is_the_agents(before, after):
    changes, _ = compare(listing(before), listing(after))
    kept, undone = undo(changes, listing(before), GradingPolicy())
    result = applied(before, kept)
    for path in NAMES:
        if path in ("tests/test_x.py", "conftest.py"):
            assert result.get(path) == before.get(path)
        elif path not in undone:
            assert result.get(path) == after.get(path)


@given(trees, trees)
def test_a_patch_counts_its_lines_and_git_applies_it(before, after):
    changes, _ = compare(listing(before), listing(after))
    patch = make_patch(changes)
    lines = [line for line in patch.text.splitlines() if not line.startswith(("+++ ", "--- "))]
    assert sum(line.startswith("+") for line in lines) <= patch.added_lines
    assert sum(line.startswith("-") for line in lines) == patch.removed_lines
    assert (patch.changed_lines > 0) == bool(changes)


@pytest.mark.parametrize("byte", [b"\xe9", b"\0", b"\xff\xfe"])
def test_every_line_counts_whatever_a_files_bytes_are(byte):
    old = b"# coding: latin-1 " + byte + b"\n" + b"".join(b"x%d = 1\n" % n for n in range(500))
    change = Change("calc.py", Node(Kind.FILE, 0o644, old), Node(Kind.FILE, 0o644, old.replace(b" = 1", b" = 2")))
    assert make_patch([change]).changed_lines == 1000


def test_a_patch_of_many_files_that_are_hard_to_compare_costs_little_and_counts():
    old = "".join(f"{n % 3}\n" for n in range(190))
    new = "".join(f"{n % 2}\n" for n in range(190))
    paths = [f"{n}.py" for n in range(5000)]
    began = time.process_time()
    patch = make_patch(compare(listing(dict.fromkeys(paths, old)), listing(dict.fromkeys(paths, new)))[0])
    assert time.process_time() - began < 10
    assert (patch.changed_lines > 5000 * 100, len(patch.text) < 1.1 * 1024 * 1024) == (True, True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_makes_the_agents_tree_of_a_patch(tmp_path):
    before = {"a": "".join(f"{n}\n" for n in range(40)), "b.py": "x\ny", "src/c.py": "gone\n"}
    after = {"a": before["a"].replace("7\n", "seven\n").replace("33\n", ""), "b.py": "x\nz\n", "src/d/e.txt": "new\n"}
    for path, text in before.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    patch = make_patch(compare(listing(before), listing(after))[0])
    subprocess.run(["git", "apply", "-"], input=patch.text, text=True, cwd=tmp_path, check=True)
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == after
    assert patch.changed_lines == sum(
        line[0] in "+-" and not line.startswith(("+++", "---")) for line in patch.text.splitlines()
    )


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../b", "a//b", "./a", ".git/hooks/x", "a/.git/config"])
def test_a_listing_that_names_a_path_outside_is_refused(path):
    row = f"+f 644 0 0 1 {path}".encode()
    with pytest.raises(ChangesRefusedError, match="leads out of the working folder"):
        read_listing(b"/app\nd 755 0 0 0 \0" + row + b"\0\0", Limits())


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"/app\n", b"/app", b"/app\nx\0\0", b"/app\nf 644 0 0 1 a\0\0no archive at all"),
        *(b"/app\n 644 0 0 5 x\0\0", b"/app\n+l 777 0 0 1" + b"0" * 400 + b" x\0\0", b"/app\nf 644 0 0 -1 x\0\0"),
    ],
)
def test_a_listing_that_the_script_cannot_have_sent_is_refused(data):
    with pytest.raises(ChangesRefusedError):
        read_listing(data, Limits())


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["f", "d", "l", "+f", "+d", "+l", "p", "", "+", "++"]),
        st.sampled_from(["644", "0", "9", "-1", ""]),
        st.integers(-1, 10),
        st.integers(-1, 10),
        st.one_of(st.integers(-10, 10**6), st.integers(10**17, 10**500)),
        st.sampled_from(["a", "a/b", "n/x", "", ".", "c/", " "]),
    ),
    max_size=12,
)


@given(ROWS)
def test_no_rows_of_a_sandbox_break_what_looks_at_them(rows):
    data = b"/app\n" + b"".join(" ".join(map(str, row)).encode() + b"\0" for row in rows) + b"\0"
    with contextlib.suppress(ChangesRefusedError):
        listing = read_listing(data, Limits())
        find_dropped(listing.entries, Limits(files=2, total_bytes=100))


def test_more_entries_than_are_read_are_refused_before_they_are():
    with pytest.raises(ChangesRefusedError, match="has 101 entries and 100 are read at most"):
        read_listing(b"/app\n" + b"never read\0" * 101 + b"\0", Limits(entries=100))


@given(st.binary(max_size=300))
def test_no_answer_of_a_sandbox_breaks_the_reader(data):
    with contextlib.suppress(ChangesRefusedError):
        assert read_listing(data, Limits()).folder == data.partition(b"\n")[0].decode(errors="surrogateescape")


def test_more_than_the_limits_is_refused_by_name():
    many = listing({f"f{n}": "x" for n in range(9)})
    with pytest.raises(ChangesRefusedError, match="9 files were changed and 8 are taken"):
        check_size(many, Limits(files=8))
    with pytest.raises(ChangesRefusedError, match="9 bytes were changed and 8 are taken"):
        check_size(many, Limits(total_bytes=8))
    with pytest.raises(ChangesRefusedError, match="'f0' has 1 bytes"):
        check_size(many, Limits(file_bytes=1))
    check_size(listing({f"f{n}": "x" for n in range(9)}, recent=False), Limits(files=8))


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        ("a", "b", True),
        ("x/a", "../b", True),
        ("a", "../b", False),
        ("x/a", "../../b", False),
        ("a", "/app/b", False),
        ("x/y/a", "../z/../../../b", False),
    ],
)
def test_a_link_is_taken_only_when_it_can_lead_nowhere_else(path, target, inside):
    link = Node(Kind.LINK, 0o777, target.encode())
    agent = Listing("/app", {path: Entry(Kind.LINK, 0o777, (0, 0), 1, True)}, {path: link})
    changes, left_out = compare(Listing("/app", {}), agent)
    assert (len(changes), left_out) == ((1, []) if inside else (0, [path]))


def test_a_link_where_a_folder_will_be_is_removed_before_anything_is_unpacked():
    untouched = Listing("/app", {"data": Entry(Kind.LINK, 0o777, (0, 0))})
    change = Change("data/x", None, Node(Kind.FILE, 0o644, b""))
    assert removed_paths([change], untouched) == ["data"]


SETUP = "[metadata]\nname = x\n\n[tool:pytest]\naddopts = -q\n\n[options]\nzip_safe = no\n"


def test_a_legitimate_change_to_setup_cfg_survives_and_the_part_of_pytest_is_undone():
    agents = SETUP.replace("zip_safe = no", "zip_safe = yes").replace("-q", "-p cheat")
    merged = merge_ini(SETUP, agents)
    assert "zip_safe = yes" in merged
    assert "addopts = -q" in merged
    assert "cheat" not in merged
    assert merge_ini(SETUP, SETUP.replace("no", "yes")) == SETUP.replace("no", "yes")
    assert "cheat" not in merge_ini("[metadata]\n", "[metadata]\n[pytest]\naddopts = -p cheat\n")


@pytest.mark.parametrize("end", ["\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\n \n  ", "\n \ufeff"])
@pytest.mark.parametrize("section", ["tool:pytest", "coverage:run"])
@pytest.mark.parametrize("before", ["", "[metadata]\nname = x\n", SETUP])
def test_no_reader_of_setup_cfg_sees_a_test_section_that_was_not_there(before, section, end):
    cheat = f"[metadata]{end}[{section}]{end}addopts = -p cheat{end}plugins = cheat{end}"
    for agents in (cheat, before + cheat, f"\ufeff[{section}]\naddopts = -p cheat\nplugins = cheat\n{before}"):
        merged = merge_ini(before, agents) or ""
        read = {}
        with contextlib.suppress(iniconfig.ParseError):  # Then pytest does not start.
            read = iniconfig.IniConfig("setup.cfg", data=merged)
        others = configparser.RawConfigParser(strict=False, allow_no_value=True)
        others.read_file(io.StringIO(merged.removeprefix("\ufeff"), newline=None))
        assert "cheat" not in str([list(read[name].items()) for name in (section,) if name in read])
        assert "cheat" not in str([others.items(name) for name in (section,) if others.has_section(name)])


def test_a_setup_cfg_with_other_line_ends_keeps_an_honest_change():
    windows = SETUP.replace("\n", "\r\n")
    assert merge_ini(windows, windows.replace("= x", "= y")) == windows.replace("= x", "= y")
    assert merge_ini("[metadata]\n", "[metadata]\ndescription = a\x0cb\n") == "[metadata]\ndescription = a\x0cb\n"


@pytest.mark.parametrize(
    "cheat",
    [
        '[tool.pytest.ini_options]\naddopts = "-p cheat"\n',
        '[tool]\npytest.ini_options.addopts = "-p cheat"\n',
        '[tool."pytest"."ini_options"]\naddopts = "-p cheat"\n',
        '["tool".pytest.ini_options]\naddopts = "-p cheat"\n',
        '[project.entry-points.pytest11]\ncheat = "cheat"\n',
        '[project]\nentry-points.pytest11.cheat = "cheat"\n',
        '[tool.coverage.run]\nplugins = ["cheat"]\n',
    ],
)
def test_pyproject_says_of_tests_what_it_said_before_or_goes_back_whole(cheat):
    before = '[build-system]\nrequires = []\n\n[tool.pytest.ini_options]\naddopts = "-q"\n'
    merged = merge_toml(before, before.replace("requires = []", 'requires = ["x"]'))
    assert 'requires = ["x"]' in merged
    without = before.partition("[tool")[0]
    assert "cheat" not in (merge_toml(without, without + cheat) or "")


def test_a_runners_name_is_protected_only_where_the_image_has_it_not():
    repository = listing({"src/_pytest/config.py": "x", "pkg/__init__.py": "", "calc.py": ""})
    new = {"src/_pytest/new.py": "y", "pytest.py": "y", "src/pluggy/__init__.py": "y", "pkg/pytest_tools.py": "y"}
    agent = listing({"src/_pytest/config.py": "changed", "pkg/__init__.py": "", "calc.py": "", **new})
    kept, undone = undo(compare(repository, agent)[0], repository, GradingPolicy())
    assert {change.path for change in kept if change.new and change.new.kind is Kind.FILE} == {
        "src/_pytest/config.py",
        "src/_pytest/new.py",
        "pkg/pytest_tools.py",
    }
    assert {"pytest.py", "src/pluggy/__init__.py"} <= set(undone)


def test_a_new_module_where_imports_begin_may_not_have_a_name_of_the_standard_library():
    before = {"pkg/__init__.py": "", "src/calc.py": "", "queue.py": "the image's own"}
    shadows = {"argparse.py": "y", "json/__init__.py": "y", "src/shutil.py": "y"}
    honest = {"pkg/types.py": "y", "new/types.py": "y", "queue.py": "y", "platform/notes.py": "y", "json.md": "y"}
    untouched = listing(before)
    kept, undone = undo(compare(untouched, listing({**before, **shadows, **honest}))[0], untouched, GradingPolicy())
    assert ({change.path for change in kept}, set(undone)) == (set(honest), set(shadows))


def without(tree, *folders):
    return {path: text for path, text in tree.items() if not path.startswith(tuple(f"{name}/" for name in folders))}


@pytest.mark.parametrize("place", ["pkg", "pkg/sub"])
@pytest.mark.parametrize("instead", [None, Kind.FILE, Kind.LINK])
def test_a_folder_that_goes_or_is_replaced_takes_no_test_with_it(place, instead):
    before = {"calc.py": "", "pkg/sub/test_a.py": "a", "pkg/sub/conftest.py": "b", "pkg/sub/code.py": "c"}
    agent = listing(without(before, place))
    for gone in [path for path in agent.entries if f"{path}/".startswith(f"{place}/")]:
        del agent.entries[gone]
    if instead is not None:
        agent.entries[place] = Entry(instead, 0o644, (0, 0), 1, True)
        agent.nodes[place] = Node(instead, 0o644, b"calc.py")
    untouched = listing(before)
    kept, undone = undo(compare(untouched, agent)[0], untouched, GradingPolicy())
    assert removed_paths(kept, untouched) == ["pkg/sub/code.py"]
    assert {place, "pkg/sub/test_a.py", "pkg/sub/conftest.py"} <= set(undone)


def test_a_folder_in_a_tests_place_is_not_taken():
    untouched, agent = listing({"pkg/test_a.py": "a"}), listing({"pkg/test_a.py/__init__.py": "pass"})
    kept, undone = undo(compare(untouched, agent)[0], untouched, GradingPolicy())
    assert removed_paths(kept, untouched) == []
    assert (kept, undone) == ([], ["pkg/test_a.py/__init__.py"])


def test_a_folder_without_tests_goes_whole():
    untouched, agent = listing({"old/a.py": "a", "calc.py": ""}), listing({"calc.py": ""})
    kept, undone = undo(compare(untouched, agent)[0], untouched, GradingPolicy())
    assert (removed_paths(kept, untouched), undone) == (["old", "old/a.py"], [])


@pytest.mark.parametrize(
    "path",
    [
        *("test/helpers.py", "test/data/x.json", "spec/calc_spec.rb", "lib/calc_spec.rb", "lib/calc_test.rb"),
        *("src/__tests__/a.js", "src/__mocks__/fs.js", "a.test.tsx", "web/a.test.mjs", "a.spec.jsx", "a.spec.mts"),
        *("pkg/foo_test.go", "core/src/test/java/CalcTest.java", "runtests.py", "tools/run_tests.sh"),
    ],
)
def test_the_usual_places_of_tests_are_protected(path):
    assert GradingPolicy().protects(path)


@pytest.mark.parametrize("path", ["django/test/client.py", "openapi/spec/parser.py", "testing.py", "src/contest.py"])
def test_what_only_sounds_like_tests_is_the_agents(path):
    assert not GradingPolicy().protects(path)


def test_what_runs_the_tests_of_a_benchmarks_repository_is_protected_there_alone(tmp_path):
    runners = ("bin/test", "bin/doctest", "sympy/testing/pytest.py")
    for name, is_protected in (("sympy__sympy-20590", True), ("django__django-11099", False)):
        task = tmp_path / name
        task.mkdir()
        (task / "task.toml").write_text(f'[task]\nname = "rows/{name}"\n')
        policy = read_policy(task)
        assert [policy.protects(path) for path in (*runners, "sympy/core/add.py")] == [*[is_protected] * 3, False]
    config = '[task]\nname = "swe-bench/sympy__sympy-1"\n[metadata.grading]\nallowed = ["bin/*"]\n'
    (task / "task.toml").write_text(config)
    assert not read_policy(task).protects("bin/test")
    assert read_policy(task).protects("sympy/testing/pytest.py"), "read again when it has changed"
