"""Tasks from SWE-bench's rows are graded as the `swebench` package grades; the whole table is a benchmark's."""

import asyncio
import json
import shutil
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentic.authoring.library import RegistryError
from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import read_task
from agentic.tasks.prepare import prepare
from agentic.tasks.settings import RowsData
from agentic.tasks.swebench_grading import grading_files
from benchmarks.swebench_parity.__main__ import compare
from benchmarks.swebench_parity.instances import INSTANCES

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs/results/swebench-parity.json"


def quiet(done: int, total: int, line: str) -> None:
    """No progress."""


def task_of(row: dict[str, Any], folder: Path, **settings: Any) -> Path:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    data = RowsData(path=str(folder / "rows.jsonl"), held_out_fraction=0.0, **settings)
    prepare(data, folder / "set", quiet)
    return folder / "set/tasks" / str(row["instance_id"])


@pytest.mark.timeout(180)  # importing swebench brings datasets, docker and modal
def test_a_row_with_its_own_script_is_read_by_its_own_parser(tmp_path: Path) -> None:
    task = read_task(task_of(INSTANCES[0].row(), tmp_path, test_seconds=70))
    row = json.loads(task.files["tests/row.json"])
    assert (row["log_parser"], row["seconds"]) == ("parse_log_pytest", 70.0)
    assert row["FAIL_TO_PASS"] == INSTANCES[0].lists()[0]
    script = task.files["tests/eval.sh"].decode()
    assert ">>>>> Test Exit Code" in script, "the package's own guard against forged logs"
    names = zipfile.ZipFile(BytesIO(task.files["tests/swebench.zip"])).namelist()
    assert "swebench/harness/log_parsers/python.py" in names
    assert task.config()["verifier"] == {"timeout_sec": 190.0}


@pytest.mark.timeout(180)
def test_every_parser_of_the_package_finds_in_the_task_what_it_reads_of_a_row() -> None:
    from swebench.harness.log_parsers import PARSER_REGISTRY

    by_id = {"parse_log_immutable_js": "immutable-js__immutable-js-2005", "parse_log_jekyll": "jekyll__jekyll-8047"}
    for name, parser in PARSER_REGISTRY.items():
        changes = {"log_parser": name, "version": "9.5"}
        changes |= {"instance_id": by_id[name]} if name in by_id else {}
        files = grading_files(INSTANCES[0].row() | changes, 60.0)
        parser("nothing\n", SimpleNamespace(**json.loads(files["tests/row.json"])))


@pytest.mark.timeout(180)
def test_a_row_whose_log_nobody_can_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="log_parser 'parse_log_cobol' is unknown"):
        task_of({**INSTANCES[0].row(), "log_parser": "parse_log_cobol"}, tmp_path)
    with pytest.raises(DataError, match="eval_script and log_parser go together"):
        task_of({**INSTANCES[0].row(), "log_parser": None}, tmp_path)
    with pytest.raises(DataError, match=r"parse_log_lighthouse reads no log of this row \(version ''\)"):
        task_of({**INSTANCES[0].row(), "log_parser": "parse_log_lighthouse", "version": ""}, tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
@pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")
def test_both_verdicts_are_the_same_on_one_instance(tmp_path: Path) -> None:
    (chosen,) = (instance for instance in INSTANCES if instance.name == "django-like")
    try:
        rows = asyncio.run(compare((chosen,), tmp_path, 2))
    except RegistryError:
        pytest.skip("no package registry can be reached, from which the instances' pytest comes")
    verdicts = {row["patch"]: (row["swebench"], row["ours"]) for row in rows}
    assert verdicts.pop("gold") == (True, True)
    assert verdicts == dict.fromkeys(["empty", "wrong", "regression", "forged"], (False, False))


def test_the_published_table_has_every_instance_and_differs_only_where_a_forgery_was_undone() -> None:
    table = json.loads(RESULTS.read_text())
    assert {row["instance"] for row in table["rows"]} == {instance.instance_id for instance in INSTANCES}
    assert table["instances"] >= 12
    assert table["gold_resolved"] == table["gold_resolved_by_ours"] == table["instances"]
    assert table["agree"] + table["ours_stricter"] == table["patches"] == len(table["rows"])
    assert table["others_resolved_by_ours"] == 0
    for row in table["rows"]:
        differs = row["swebench"] != row["ours"]
        assert differs == row["ours_stricter"] != row["agree"]
        assert not differs or (row["patch"], row["swebench"]) == ("forged", True)
    assert {row["patch"] for row in table["rows"]} == {"gold", "empty", "wrong", "regression", "forged"}
