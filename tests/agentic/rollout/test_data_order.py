"""The order of training data as we foretell it, held against verl's own sampler and the loader that it is used in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.rollout.agent_loop_config import RolloutJob
from agentic.rollout.data_order import DataOrder
from agentic.tasks.manifest import MANIFEST, Manifest
from agentic.tasks.splits import TRAIN


class VerlsLoader:
    """As `verl.trainer.ppo.v1.trainer_base` makes it and draws from it."""

    def __init__(self, rows: int, seed: int, batch_rows: int) -> None:
        from omegaconf import OmegaConf
        from torchdata.stateful_dataloader import StatefulDataLoader
        from verl.trainer.ppo.utils import create_rl_sampler

        dataset: Any = list(range(rows))
        sampler = create_rl_sampler(OmegaConf.create({"shuffle": True, "seed": seed}), dataset)
        self.loader = StatefulDataLoader(
            dataset=dataset, batch_size=batch_rows, num_workers=0, drop_last=True, collate_fn=list, sampler=sampler
        )

    def steps(self) -> Iterator[list[int]]:
        while True:
            yield from iter(self.loader)


def first_needed(steps: list[list[int]], rows: int) -> list[int]:
    return list(dict.fromkeys([*(row for step in steps for row in step), *range(rows)]))


@pytest.mark.parametrize(("rows", "batch_rows"), [(1, 1), (7, 3), (12, 4), (100, 32), (1000, 7)])
@pytest.mark.parametrize("seed", [0, 1, 20260101, 2**40 + 5])
def test_rows_come_in_the_order_of_verls_own_sampler(rows: int, batch_rows: int, seed: int) -> None:
    loader = VerlsLoader(rows, seed, batch_rows).steps()
    steps = [next(loader) for _ in range(3 * (rows // batch_rows))]
    assert DataOrder(seed=seed, batch_rows=batch_rows).rows(rows) == first_needed(steps, rows)


@pytest.mark.parametrize("steps_done", [1, 3, 4, 5, 8, 11])
def test_a_run_that_goes_on_from_a_checkpoint_comes_to_the_rows_that_are_left(steps_done: int) -> None:
    rows, batch_rows, seed = 14, 3, 5
    before = VerlsLoader(rows, seed, batch_rows)
    drawing = before.steps()
    for _ in range(steps_done):
        next(drawing)
    resumed = VerlsLoader(rows, seed, batch_rows)
    resumed.loader.load_state_dict(before.loader.state_dict())
    drawing = resumed.steps()
    steps = [next(drawing) for _ in range(3 * (rows // batch_rows))]
    order = DataOrder(seed=seed, batch_rows=batch_rows, steps_done=steps_done)
    assert order.rows(rows) == first_needed(steps, rows)


@given(st.integers(0, 40), st.integers(-5, 2**64), st.integers(1, 50), st.integers(0, 200))
def test_every_row_is_named_once(rows: int, seed: int, batch_rows: int, steps_done: int) -> None:
    named = DataOrder(seed=seed, batch_rows=batch_rows, steps_done=steps_done).rows(rows)
    assert sorted(named) == list(range(rows))


def test_tasks_are_expected_in_the_order_in_which_verl_trains_on_them(tmp_path: Path) -> None:
    tasks = [f"t{number}" for number in range(9)]
    splits = {TRAIN: tasks, "held-out": ["h"]}
    manifest = Manifest(
        name="m", source="folder", recipe_sha256="0", seed=0, counts={}, splits=splits, content_sha256="0"
    )
    (tmp_path / MANIFEST).write_text(manifest.model_dump_json())
    steps = VerlsLoader(9, 3, 3).steps()
    first = [tasks[row] for row in (*next(steps), *next(steps), *next(steps))]
    places = {"run_dir": tmp_path, "data_dir": tmp_path, "store_dir": tmp_path, "model_dir": tmp_path}
    job = RolloutJob(
        run_id="r", max_prompt_tokens=1, max_response_tokens=1, order=DataOrder(seed=3, batch_rows=3), **places
    )
    assert [folder.name for folder in job.expected_tasks()] == ["h", *first]
