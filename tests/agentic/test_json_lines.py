"""JSON lines survive writers that die over them."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic import json_lines


def row(number: int) -> str:
    return json.dumps({"number": number})


def numbers(path: Path, start: int = 0) -> list[int]:
    return [found["number"] for found in json_lines.read(path, start).rows]


@given(cut=st.integers(1, 40))
def test_a_line_cut_at_any_byte_costs_itself_and_no_other(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    json_lines.append(path, [row(1), row(2)])
    whole = path.read_bytes()
    os.truncate(path, max(0, len(whole) - cut))
    survivors = numbers(path)

    json_lines.append(path, [row(3)])

    found = json_lines.read(path)
    assert [one["number"] for one in found.rows] in ([*survivors, 3], [1, 3], [1, 2, 3])
    assert found.rows[-1]["number"] == 3
    assert found.torn <= 1


def test_reading_on_sees_only_what_was_appended_since(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert json_lines.read(path) == ([], 0, 0)
    json_lines.append(path, [row(1)])
    end = json_lines.read(path).end
    json_lines.append(path, [row(2)])

    assert numbers(path, end) == [2]


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row(1) + "\n" + row(2)[:5])
    first = json_lines.read(path)
    assert (len(first.rows), first.torn) == (1, 0)

    path.write_text(row(1) + "\n" + row(2) + "\n")
    assert numbers(path, first.end) == [2]


def test_a_disk_that_is_full_is_said_and_what_was_written_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    json_lines.append(path, [row(1)])
    limit = path.stat().st_size + 4
    code = (
        "import resource, signal, sys, pathlib; from agentic import json_lines;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {resource.RLIM_INFINITY}));"
        f"json_lines.append(pathlib.Path({str(path)!r}), ['{{\"number\": 2}}'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "free disk space" in done.stderr
    json_lines.append(path, [row(3)])
    assert numbers(path) == [1, 3]
    assert json_lines.read(path).torn == 1
