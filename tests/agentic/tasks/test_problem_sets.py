"""Mathematics sets as data sets: generated, shipped, and the published ones from a double of the hub."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hub_double import Hub, serve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.tasks.errors import DataError, DownloadIncomplete
from agentic.tasks.harbor_format import read_task
from agentic.tasks.manifest import read_manifest
from agentic.tasks.parquet import read_rows
from agentic.tasks.prepare import prepare
from agentic.tasks.problems.answers import AnswerChecker
from agentic.tasks.problems.generator import FORMS, HELD_OUT_THINGS, generate, value_of
from agentic.tasks.problems.sources import HUB_SETS, final_answer
from agentic.tasks.settings import MathData


def quiet(done: int, total: int, message: str) -> None:
    assert 0 <= done <= total, message


def made(tmp_path: Path, **changes: Any) -> Path:
    out = tmp_path / "datasets/math"
    prepare(MathData(**changes), out, quiet)
    return out


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue()


GSM8K = {
    f"main/{split}-00000-of-00001.parquet": parquet(
        [{"question": f"{split} {n}?", "answer": f"It is <<1+1=2>>{n}.\n#### 1,{n:03}"} for n in range(count)]
    )
    for split, count in {"train": 5, "test": 130}.items()
} | {"README.md": b"about", "socratic/train-00000-of-00001.parquet": b"another form, not wanted"}

VERL_ROWS = [
    {
        "data_source": "lighteval",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"What is {n}/2?"}],
        "reward_model": {"style": "rule", "ground_truth": rf"\frac{{{n}}}{{2}}"},
    }
    for n in range(8)
]


@pytest.fixture
def gsm8k(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with serve(GSM8K, HUB_SETS["gsm8k"].repository, "datasets") as hub:
        yield hub


def test_gsm8k_is_downloaded_and_its_first_hundred_test_rows_are_the_quick_validation(
    gsm8k: Hub, tmp_path: Path
) -> None:
    out = made(tmp_path, origin="gsm8k", endpoint=gsm8k.address, test=20)
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.counts == {"train": 5, "validation": 100, "test": 20}
    assert sorted(gsm8k.fetched) == sorted(name for name in GSM8K if name.startswith("main/"))
    rows = read_rows(out / "validation/validation.parquet")
    assert rows[99]["extra_info"]["question"] == "test 99?"
    assert rows[99]["reward_model"] == {"style": "rule", "ground_truth": "1099"}


def test_rows_are_what_verls_tool_loop_reads(gsm8k: Hub, tmp_path: Path) -> None:
    row = read_rows(made(tmp_path, origin="gsm8k", endpoint=gsm8k.address) / "train.parquet")[0]
    assert "agent_name" not in row
    assert row["data_source"] == "math/train"
    assert "tool code_interpreter" in row["prompt"][0]["content"]
    extra = row["extra_info"]
    assert extra["task"] == "train-00000"
    assert extra["need_tools_kwargs"] is True
    assert extra["tools_kwargs"] == {"code_interpreter": {"create_kwargs": {"ground_truth": "1000"}}}


def test_without_tools_the_prompt_tells_of_none(gsm8k: Hub, tmp_path: Path) -> None:
    row = read_rows(made(tmp_path, origin="gsm8k", endpoint=gsm8k.address, tools=False) / "train.parquet")[0]
    assert row["prompt"][0]["content"].startswith("train 0?\n\nReason step by step")
    assert "tool" not in row["prompt"][0]["content"]


def test_a_cut_download_goes_on_where_it_was(gsm8k: Hub, tmp_path: Path) -> None:
    first, second = (name for name in GSM8K if name.startswith("main/"))
    gsm8k.refused.add(second)
    with pytest.raises(DownloadIncomplete, match="run the step again"):
        made(tmp_path, origin="gsm8k", endpoint=gsm8k.address)
    gsm8k.refused.clear()
    made(tmp_path, origin="gsm8k", endpoint=gsm8k.address)
    assert gsm8k.fetched.count(first) == gsm8k.fetched.count(second) == 1


def test_a_set_that_the_hub_does_not_have_is_a_permanent_error(gsm8k: Hub, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no BytedTsinghua-SIA/DAPO-Math-17k: set data\.path"):
        made(tmp_path, origin="dapo", endpoint=gsm8k.address)


@pytest.mark.parametrize("origin", ["math", "dapo"])
def test_rows_in_verls_own_form_are_read_from_a_local_file(tmp_path: Path, origin: str) -> None:
    (tmp_path / "all.parquet").write_bytes(parquet([*VERL_ROWS, *VERL_ROWS]))
    out = made(tmp_path, origin=origin, path=str(tmp_path / "all.parquet"), validation=2, test=1)
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.counts == {"train": 5, "validation": 2, "test": 1}


def test_maths_own_rows_have_their_answer_in_the_last_box(tmp_path: Path) -> None:
    folder = tmp_path / "MATH"
    folder.mkdir()
    row = {"problem": "p", "level": "Level 3", "type": "Algebra", "solution": r"so \boxed{\frac{1}{2}}."}
    (folder / "train.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "test.jsonl").write_text(json.dumps({**row, "problem": "q"}) + "\n")
    extra = read_rows(made(tmp_path, origin="math", path=str(folder)) / "train.parquet")[0]
    assert extra["reward_model"]["ground_truth"] == r"\frac{1}{2}"
    assert extra["extra_info"]["level"] == "Level 3"


@pytest.mark.parametrize(
    "row", [{"text": "x"}, {"problem": "p", "solution": "no box"}, {"question": "q", "answer": ""}]
)
def test_a_row_without_a_question_or_an_answer_is_named(tmp_path: Path, row: dict[str, str]) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"row 0 of rows\.jsonl has the columns"):
        made(tmp_path, origin="math", path=str(tmp_path / "rows.jsonl"))


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.path nowhere is not there"):
        made(tmp_path, origin="math", path="nowhere")


def test_what_follows_the_hashes_is_gsm8ks_answer() -> None:
    assert final_answer("a\n#### 12,345,678") == "12345678"


def test_each_task_is_a_whole_harbor_task_whose_solution_is_right(tmp_path: Path) -> None:
    folder = made(tmp_path, train=2, validation=1, test=1) / "tasks" / "train-00000"
    task = read_task(folder)
    expected = task.files["tests/expected.txt"].decode()
    answer = tmp_path / "answer.txt"
    answer.write_bytes(task.files["solution/solve.sh"].split(b"'ANSWER'\n")[1])
    words = [str(folder / "tests/check.py"), str(answer), str(folder / "tests/expected.txt"), str(tmp_path / "logs")]
    done = subprocess.run([sys.executable, "-I", "-S", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "logs/reward.txt").read_text()) == (0, "1\n"), done.stdout + done.stderr
    assert expected.strip() in answer.read_text()


@settings(max_examples=20)
@given(seed=st.text(max_size=4))
def test_generated_answers_are_the_values_of_their_code(seed: str) -> None:
    problems = generate(40, seed)
    assert len({one.problem.question for one in problems}) == 40
    for one in problems:
        assert one.problem.answer == str(eval(one.code)) == str(value_of(one.code))
        assert int(one.problem.answer) > 0


def test_generated_problems_have_every_form_and_held_out_things_are_new() -> None:
    assert {one.form for one in generate(100, "s")} == set(range(len(FORMS)))
    asked = " ".join(one.problem.question for one in generate(200, "s"))
    assert not any(thing in asked for thing in HELD_OUT_THINGS)
    assert all(
        any(thing in one.problem.question for thing in HELD_OUT_THINGS) for one in generate(50, "s", held_out=True)
    )


async def test_the_shipped_answers_are_what_their_code_gives() -> None:
    import sympy

    checker = AnswerChecker()
    text = files("agentic.tasks.problems").joinpath("shipped.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    wrong = []
    for row in rows:
        value = eval(row["code"], {"sympy": sympy})
        if not await checker.is_correct(sympy.latex(value), row["answer"]):
            wrong.append((row["problem"], row["answer"], str(value)))
    await checker.close()
    assert len(rows) >= 30
    assert wrong == []


def test_the_shipped_set_has_all_splits(tmp_path: Path) -> None:
    manifest = read_manifest(made(tmp_path, origin="shipped", validation=8, test=4))
    assert manifest is not None
    assert manifest.counts["validation"] == 8
    assert manifest.counts["test"] == 4
    assert manifest.counts["train"] >= 20
