"""Data set folders from every source: what is written, that it is whole or absent, and that a second run is free."""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from agentic.errors import PermanentError
from agentic.tasks.errors import DataError, DownloadIncomplete
from agentic.tasks.harbor_format import read_task
from agentic.tasks.manifest import Manifest
from agentic.tasks.parquet import read_rows, write_rows
from agentic.tasks.prepare import prepare
from agentic.tasks.settings import DataSettings, FolderData, MutationData, RowsData, SweBenchData
from agentic.tasks.splits import split_ids

SMALL = MutationData(train=12, same_template=5, new_template=3)


def quiet(done: int, total: int, message: str) -> None:
    assert 0 <= done <= total, message


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_mutation_data_set_has_tasks_rows_and_a_manifest(tmp_path: Path) -> None:
    summary = prepare(SMALL, tmp_path / "repair", quiet)
    out = tmp_path / "repair"
    manifest = Manifest.model_validate_json((out / "manifest.json").read_bytes())
    assert summary.counts == manifest.counts == {"train": 12, "same-template": 5, "new-template": 3}
    assert sorted(path.name for path in (out / "tasks").iterdir()) == sorted(
        task_id for ids in manifest.splits.values() for task_id in ids
    )
    for split, file in {"train": "train.parquet", "same-template": "validation/same-template.parquet"}.items():
        rows = read_rows(out / file)
        assert [row["extra_info"]["task"] for row in rows] == manifest.splits[split]
        for index, row in enumerate(rows):
            task = read_task(out / "tasks" / row["extra_info"]["task"])
            assert row["data_source"] == f"repair/{split}"
            assert row["prompt"] == [{"role": "user", "content": task.instruction}]
            assert row["agent_name"] == "remote_agent"
            assert row["reward_model"] == {"style": "rule", "ground_truth": ""}
            assert row["extra_info"] == {"task": task.task_id, "split": split, "index": index}


def test_the_same_settings_are_reused_and_others_replace(tmp_path: Path) -> None:
    out = tmp_path / "repair"
    first = prepare(SMALL, out, quiet)
    before = files_of(out)
    again = prepare(SMALL, out, quiet)
    assert (first.reused, again.reused) == (False, True)
    assert files_of(out) == before
    other = prepare(SMALL.model_copy(update={"seed": 1}), out, quiet)
    assert not other.reused
    assert other.content_sha256 != first.content_sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == [".repair.lock", "repair"]


def test_two_machines_make_the_same_data_set(tmp_path: Path) -> None:
    assert prepare(SMALL, tmp_path / "a", quiet).content_sha256 == prepare(SMALL, tmp_path / "b", quiet).content_sha256
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_what_a_killed_run_left_is_no_data_set_and_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / ".repair.partial" / "tasks" / "half"
    left.mkdir(parents=True)
    prepare(SMALL, tmp_path / "repair", quiet)
    assert not (tmp_path / ".repair.partial").exists()
    assert not (tmp_path / "repair/tasks/half").exists()


def test_a_torn_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "repair").mkdir()
    (tmp_path / "repair/manifest.json").write_text('{"version"')
    with pytest.raises(PermanentError, match=r"manifest\.json cannot be read"):
        prepare(SMALL, tmp_path / "repair", quiet)


def make_task(folder: Path, instruction: str = "Repair it.") -> None:
    for name, text in {
        "task.toml": 'schema_version = "1.4"\n',
        "instruction.md": instruction,
        "environment/Dockerfile": "FROM scratch\n",
        "tests/test.sh": "exit 0\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_local_folder_is_split_by_its_seed(tmp_path: Path) -> None:
    for index in range(10):
        make_task(tmp_path / "mine" / f"task-{index}")
    (tmp_path / "mine" / "notes").mkdir()
    settings = FolderData(path=str(tmp_path / "mine"), held_out_fraction=0.3)
    summary = prepare(settings, tmp_path / "folder", quiet)
    assert summary.counts == {"train": 7, "held-out": 3}
    other = prepare(settings.model_copy(update={"seed": 1}), tmp_path / "other", quiet)
    assert other.counts == summary.counts
    assert other.content_sha256 == summary.content_sha256
    splits = [json.loads((tmp_path / name / "manifest.json").read_bytes())["splits"] for name in ("folder", "other")]
    assert splits[0] != splits[1]


@pytest.mark.parametrize("content", [None, "empty"])
def test_a_folder_without_tasks_is_refused(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "mine" / content).mkdir(parents=True)
    with pytest.raises(DataError, match=r"data\.path .*mine"):
        prepare(FolderData(path=str(tmp_path / "mine")), tmp_path / "folder", quiet)
    assert not (tmp_path / "folder").exists()


DOWNLOADER = """
import pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index('--output-dir') + 1]) / 'swebench-verified'
missing = [n for n in range({tasks}) if not (out / f'repo__name-{{n}}' / 'tests' / 'test.sh').is_file()]
for n in missing[:{each}]:
    folder = out / f'repo__name-{{n}}'
    for name, text in (('task.toml', ''), ('instruction.md', f'Fix {{n}}.'), ('environment/Dockerfile', 'FROM x'),
                       ('tests/test.sh', 'exit 0')):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
cut = out / f'repo__name-{{missing[-1]}}' / 'task.toml'
if len(missing) > {each}:
    cut.parent.mkdir(parents=True, exist_ok=True)
    cut.write_text('')
    print('connection cut', file=sys.stderr)
    sys.exit(1)
"""


def swebench(tmp_path: Path, *, tasks: int, each: int, attempts: int) -> SweBenchData:
    """A local double of the download command that brings `each` tasks and then loses its connection."""
    script = tmp_path / "download.py"
    script.write_text(DOWNLOADER.format(tasks=tasks, each=each))
    return SweBenchData(command=(sys.executable, str(script)), tasks=20, train=16, attempts=attempts)


def test_swebench_tasks_are_counted_and_missing_ones_fetched_again(tmp_path: Path) -> None:
    messages: list[tuple[int, int]] = []
    summary = prepare(
        swebench(tmp_path, tasks=20, each=8, attempts=3),
        tmp_path / "swe",
        lambda done, total, message: messages.append((done, total)),
    )
    assert summary.counts == {"train": 16, "held-out": 4}
    assert (8, 20) in messages
    assert (20, 20) in messages


def test_a_download_that_stays_short_keeps_what_came_and_goes_on_the_next_time(tmp_path: Path) -> None:
    settings = swebench(tmp_path, tasks=20, each=8, attempts=1)
    for missing in (12, 4):
        with pytest.raises(DownloadIncomplete, match=rf"{missing} of 20 tasks are missing \(exit 1: connection cut\)"):
            prepare(settings, tmp_path / "swe", quiet)
        assert not (tmp_path / "swe").exists()
    assert prepare(settings, tmp_path / "swe", quiet).counts == {"train": 16, "held-out": 4}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".swe.lock", "download.py", "swe"]


def test_what_a_killed_download_was_copying_is_no_task_and_keeps_none_away(tmp_path: Path) -> None:
    settings = swebench(tmp_path, tasks=20, each=8, attempts=1)
    with pytest.raises(DownloadIncomplete):
        prepare(settings, tmp_path / "swe", quiet)
    arrived = tmp_path / ".swe.download" / "swebench-verified"
    shutil.copytree(arrived / "repo__name-0", arrived / "tmpk2v9" / "source")
    (arrived / "repo__name-9").mkdir(exist_ok=True)
    (arrived / "repo__name-9" / "task.toml").write_text("")
    script = tmp_path / "download.py"
    whole = "(out / f'repo__name-{n}' / 'tests' / 'test.sh').is_file()"
    assert whole in script.read_text()
    script.write_text(script.read_text().replace(whole, "(out / f'repo__name-{n}').exists()"))  # As Harbor does.
    for _ in range(2):
        with contextlib.suppress(DownloadIncomplete):
            prepare(settings, tmp_path / "swe", quiet)
    assert prepare(settings, tmp_path / "swe", quiet).counts == {"train": 16, "held-out": 4}


def test_a_wrong_count_and_a_missing_command_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"25 tasks arrived, data\.tasks says 20"):
        prepare(swebench(tmp_path, tasks=25, each=25, attempts=1), tmp_path / "swe", quiet)
    with pytest.raises(DataError, match=r"no-such-command.*install it"):
        prepare(SweBenchData(command=("no-such-command",)), tmp_path / "other", quiet)


ROW = {
    "instance_id": "org__repo-1",
    "problem_statement": "It breaks.",
    "repo": "org/repo",
    "patch": "--- a/x.py\n+++ b/x.py\n",
    "test_patch": "--- a/tests/test_x.py\n+++ b/tests/test_x.py\n",
    "FAIL_TO_PASS": '["tests/test_x.py::test_a b"]',
    "PASS_TO_PASS": "[]",
}


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_rows_become_tasks(tmp_path: Path, ending: str) -> None:
    rows = [{**ROW, "instance_id": f"org__repo-{index}"} for index in range(4)]
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        write_rows(rows, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = prepare(RowsData(path=str(path), held_out_fraction=0.25), tmp_path / "rows", quiet)
    assert summary.counts == {"train": 3, "held-out": 1}
    task = read_task(tmp_path / "rows/tasks/org__repo-0")
    assert task.files["environment/Dockerfile"].startswith(b"FROM swebench/sweb.eval.x86_64.org_1776_repo-0:latest\n")
    expected = json.loads(task.files["tests/expected.json"])
    assert expected["touched"] == ["tests/test_x.py"]
    assert expected["FAIL_TO_PASS"] == ["tests/test_x.py::test_a b"]
    assert expected["command"] == [
        "python",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/test_x.py::test_a b",
    ]


def test_a_text_may_hold_any_character_that_json_does(tmp_path: Path) -> None:
    statement = "one\u2028two\u0085three"
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ROW, "problem_statement": statement}, ensure_ascii=False) + "\n\n")
    prepare(RowsData(path=str(path), held_out_fraction=0.0), tmp_path / "rows", quiet)
    assert read_task(tmp_path / "rows/tasks" / str(ROW["instance_id"])).instruction == statement


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"problem_statement": ""}, "row 1: problem_statement"),
        ({"FAIL_TO_PASS": "[]"}, "row 1: FAIL_TO_PASS"),
        ({"test_command": "make check"}, "row 1: .*runs no pytest"),
        ({"FAIL_TO_PASS": "nonsense"}, "row 1: FAIL_TO_PASS"),
        ({"instance_id": "../escape"}, "row 1: instance_id"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, str], problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ROW, **change}) + "\n")
    with pytest.raises(DataError, match=problem):
        prepare(RowsData(path=str(path)), tmp_path / "rows", quiet)


def test_a_split_depends_on_ids_and_seed_alone() -> None:
    ids = [f"task-{index}" for index in range(50)]
    assert split_ids(ids, 10, 3) == split_ids(reversed(ids), 10, 3)
    assert split_ids(ids, 10, 3) != split_ids(ids, 10, 4)
    parts = split_ids(ids, 10, 3)
    assert sorted(parts["train"] + parts["held-out"]) == sorted(ids)


def test_settings_are_told_apart_by_source_and_refuse_unknown_keys() -> None:
    adapter: TypeAdapter[DataSettings] = TypeAdapter(DataSettings)
    assert adapter.validate_python({"source": "swebench"}) == SweBenchData()
    with pytest.raises(ValidationError, match="trian"):
        adapter.validate_python({"source": "mutation", "trian": 4})
