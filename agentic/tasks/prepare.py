"""Makes a data set folder from settings: tasks, parquet files, manifest.

    <out>/manifest.json  tasks/<task id>/  train.parquet  validation/<split>.parquet

The folder appears by one rename, complete, or not at all. Made again with the same settings it is left as it is; with
other settings it is replaced, as soon as no other run makes or reads it. Downloads are kept beside it until it is
complete, so that a second try goes on.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from agentic.files import discard, locked_folder, publish_folder
from agentic.tasks import splits
from agentic.tasks.harbor_format import TaskFolder, write_task
from agentic.tasks.manifest import MANIFEST, Manifest, hash_recipe, hash_tree, read_manifest
from agentic.tasks.parquet import changed_row, make_row, write_rows
from agentic.tasks.settings import DataSettings, FolderData, MathData, MutationData, RowsData, SweBenchData

type OnProgress = Callable[[int, int, str], None]
"""Called with (done, total, message)."""


class DataSummary(BaseModel):
    """What `prepare` made or found."""

    model_config = ConfigDict(frozen=True)

    name: str
    counts: dict[str, int]
    """Split → tasks."""
    content_sha256: str
    recipe_sha256: str
    seconds: float
    reused: bool
    """True when the folder was there already."""


def prepare(settings: DataSettings, out: Path, on_progress: OnProgress) -> DataSummary:
    """Make `out`, or find that it is there already."""
    started = time.monotonic()
    digest = hash_recipe(settings, Path(__file__).parent)
    manifest = _find(out, digest)
    if manifest is not None:
        return _summarize(manifest, started, reused=True)

    def on_wait() -> None:
        line = f"waiting for another run that makes or reads {out.name}; another data.name would be a folder of its own"
        on_progress(0, 1, line)

    with locked_folder(out, on_wait, exclusive=True):
        manifest = _find(out, digest)
        if manifest is not None:  # that run wanted the same
            return _summarize(manifest, started, reused=True)
        return _summarize(_make(settings, digest, out, on_progress), started, reused=False)


def _find(out: Path, digest: str) -> Manifest | None:
    manifest = read_manifest(out)
    return manifest if manifest is not None and manifest.recipe_sha256 == digest else None


def _make(settings: DataSettings, digest: str, out: Path, on_progress: OnProgress) -> Manifest:
    partial, download = (out.with_name(f".{out.name}.{kind}") for kind in ("partial", "download"))
    discard(partial)
    partial.mkdir(parents=True)
    tasks = _collect(settings, download, on_progress)
    manifest = _write(settings, digest, tasks, partial, on_progress)
    publish_folder(partial, out)
    discard(download)
    return manifest


def _collect(settings: DataSettings, download: Path, on_progress: OnProgress) -> Mapping[str, list[TaskFolder]]:
    match settings:
        case MutationData():
            from agentic.tasks.mutation.splits import make_splits

            return make_splits(settings)
        case FolderData():
            from agentic.tasks.folder import read_folder

            return read_folder(settings)
        case SweBenchData():
            from agentic.tasks.swebench import download_tasks

            return download_tasks(settings, download, on_progress)
        case RowsData():
            from agentic.tasks.rows import read_source_rows

            return read_source_rows(settings)
        case MathData():
            from agentic.tasks.problems.splits import make_splits as make_problems

            return make_problems(settings, download)


def _write(
    settings: DataSettings,
    digest: str,
    tasks: Mapping[str, list[TaskFolder]],
    folder: Path,
    on_progress: OnProgress,
) -> Manifest:
    total, done = sum(map(len, tasks.values())), 0
    for split, members in tasks.items():
        source = f"{settings.name}/{split}"
        rows = [
            changed_row(make_row(source, split, i, task.task_id, task.instruction), task.row)
            for i, task in enumerate(members)
        ]
        target = folder / "train.parquet" if split == splits.TRAIN else folder / "validation" / f"{split}.parquet"
        if rows:
            write_rows(rows, target)
        for task in members:
            write_task(task, folder / "tasks" / task.task_id)
            done += 1
            if done % 64 == 0 or done == total:
                on_progress(done, total, f"wrote {done} of {total} tasks")
    manifest = Manifest(
        name=settings.name,
        source=settings.source,
        recipe_sha256=digest,
        seed=settings.seed,
        counts={split: len(members) for split, members in tasks.items()},
        splits={split: [task.task_id for task in members] for split, members in tasks.items()},
        content_sha256=hash_tree(folder / "tasks"),
        tasks_sha256={path.name: hash_tree(path) for path in sorted((folder / "tasks").iterdir())},
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n")
    return manifest


def _summarize(manifest: Manifest, started: float, *, reused: bool) -> DataSummary:
    return DataSummary(
        name=manifest.name,
        counts=manifest.counts,
        content_sha256=manifest.content_sha256,
        recipe_sha256=manifest.recipe_sha256,
        seconds=round(time.monotonic() - started, 3),
        reused=reused,
    )
