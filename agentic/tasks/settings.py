"""Where the data set comes from and how it is split."""

from typing import Annotated, Literal

from pydantic import Field

from agentic.settings import Settings


class MutationData(Settings):
    """Tasks generated here by mutating small functions: seconds to make, two held-out splits."""

    source: Literal["mutation"] = "mutation"
    name: str = Field("repair", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Folder under `datasets/`; also the first part of the rows' `data_source`."""
    train: int = Field(512, ge=1, le=4096)
    """Training tasks."""
    same_template: int = Field(128, ge=0, le=1024)
    """Held-out tasks of the training shapes with other names and texts."""
    new_template: int = Field(48, ge=0, le=256)
    """Held-out tasks of shapes that no training task has."""
    two_places: float = Field(0.1, ge=0.0, le=1.0)
    """Share of functions with two documented places, one of them wrong: the hard ones."""
    seed: int = 0
    """Another seed gives other training tasks; the held-out tasks follow `held_out_seed`."""
    held_out_seed: int = 0
    """Kept apart from `seed`, so that runs with different seeds are compared on the same held-out tasks."""
    separate_grading: bool = False
    """Grade in a fresh sandbox that sees only the repaired file: safe from a policy that tampers with its sandbox, at
    the cost of a second sandbox for each trial."""


class FolderData(Settings):
    """A local folder whose subfolders are Harbor tasks."""

    source: Literal["folder"] = "folder"
    name: str = Field("folder", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Folder under `datasets/`; also the first part of the rows' `data_source`."""
    path: str = "tasks"
    """The folder, absolute or relative to the directory that the command is started in."""
    held_out_fraction: float = Field(0.2, ge=0.0, lt=1.0)
    """Share of tasks for validation, rounded to the nearest whole task."""
    seed: int = 0
    """Decides which tasks are held out."""


class SweBenchData(Settings):
    """SWE-bench Verified as Harbor tasks, fetched by Harbor's own command."""

    source: Literal["swebench"] = "swebench"
    name: str = Field("swebench-verified", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Folder under `datasets/`; also the first part of the rows' `data_source`."""
    command: tuple[str, ...] = ("harbor", "datasets", "download", "swebench-verified", "--export")
    """Run with `--output-dir FOLDER` appended."""
    tasks: int = Field(500, ge=1)
    """How many tasks must be there; anything less is fetched again."""
    train: int = Field(400, ge=1)
    """Tasks for training; the rest is held out, the same share of every repository. Less than `tasks`."""
    attempts: int = Field(3, ge=1)
    """Runs of the command before the step gives up; what arrived is kept for the next try."""
    timeout_seconds: float = Field(3600.0, gt=0)
    """For one run of the command."""
    seed: int = 0
    """Decides the split."""


class RowsData(Settings):
    """A local parquet or jsonl file with rows in SWE-bench's schema."""

    source: Literal["rows"] = "rows"
    name: str = Field("rows", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Folder under `datasets/`; also the first part of the rows' `data_source`."""
    path: str
    """The file; its ending (`.parquet` or `.jsonl`) names the format."""
    image: str = "swebench/sweb.eval.x86_64.{instance_id}:latest"
    """Image of a row that names none. `{instance_id}` has `__` replaced by `_1776_`, as the published images have."""
    test_seconds: float = Field(1800.0, gt=0)
    """How long a row's tests may run; the default is that of SWE-bench's harness. Out of time is not resolved."""
    held_out_fraction: float = Field(0.2, ge=0.0, lt=1.0)
    """Share of tasks for validation, rounded to the nearest whole task."""
    seed: int = 0
    """Decides which tasks are held out."""


class MathData(Settings):
    """Mathematics problems with an answer that can be checked."""

    source: Literal["math"] = "math"
    name: str = Field("math", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Folder under `datasets/`; also the first part of the rows' `data_source`."""
    origin: Literal["generated", "shipped", "gsm8k", "math", "dapo"] = "generated"
    """`generated`: word problems for the tiny policy, made here; `shipped`: a small set of our own; `gsm8k`, `math`
    (lighteval-MATH-preprocessed) and `dapo` (DAPO-Math-17k) are downloaded unless `path` has them."""
    path: str | None = None
    """A local file or folder (parquet or jsonl) instead of the download, absolute or relative to the directory that the
    command is started in; files with `test` in their names are held out, else `held_out_seed` decides."""
    endpoint: str | None = None
    """Address of a mirror of the hub; `None` is the client's own default."""
    train: int = Field(8192, ge=1)
    """Training problems, at most."""
    validation: int = Field(100, ge=1)
    """The first held-out problems: the quick validation that decides which checkpoint is best."""
    test: int = Field(64, ge=0)
    """The next held-out problems, which decide nothing."""
    tools: bool = True
    """Tell the policy of the tool `code_interpreter`; generated problems tell of nothing."""
    seed: int = 0
    """Another seed gives other generated training problems."""
    held_out_seed: int = 0
    """Decides which problems are held out where no file does."""


DataSettings = Annotated[MutationData | FolderData | SweBenchData | RowsData | MathData, Field(discriminator="source")]
"""Any source of tasks, told apart by `source`."""
