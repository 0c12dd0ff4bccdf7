"""The rows that the trainer's data set reads, one a task.

A row carries the instruction for the prompt's length and the task's id for the rollout; everything else about the task
stays in its folder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

AGENT_NAME = "remote_agent"
"""The agent loop that the trainer looks up for each row."""


def make_row(data_source: str, split: str, index: int, task_id: str, instruction: str) -> dict[str, Any]:
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": instruction}],
        "agent_name": AGENT_NAME,
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"task": task_id, "split": split, "index": index},
    }


def changed_row(row: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A row with other columns; `extra_info` is added to, and None takes a column out."""
    merged = row | dict(changes)
    merged["extra_info"] = row["extra_info"] | changes.get("extra_info", {})
    return {name: value for name, value in merged.items() if value is not None}


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows
