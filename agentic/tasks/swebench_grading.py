"""What a task made from a SWE-bench row needs to be graded as the `swebench` package grades it.

A row of SWE-bench 5 says how its tests are run (`eval_script`) and read (`log_parser`, `eval_type`). The task's
`tests/` hold the script as the package's `make_test_spec` writes it, the row's lists, and the package's own parsers and
verdict as an archive that is imported from inside the sandbox, so that no installation is needed there. Of the package
nothing is changed but one `__init__`, which would import docker and modal. Where pytest runs the tests, the probe goes
along (see `swebench_grader.py`); but not to pytest's own repository, where the runner is what the tests are about, nor
where several commands are run, of which it would see the first.
"""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import TEST
from agentic.tasks.mutation.library_task import PROBE
from agentic.tasks.packed import packed

ARCHIVE = "tests/swebench.zip"
PARTS = (
    "swebench/__init__.py",
    "swebench/types.py",
    "swebench/utils.py",
    "swebench/harness/grading.py",
    "swebench/harness/infra_failure.py",
    "swebench/harness/constants/*.py",
    "swebench/harness/log_parsers/*.py",
    "unidiff/*.py",
)
"""Of the installed packages; `unidiff` is what `swebench/utils.py` imports."""
GRADING_SECONDS = 120.0
"""On top of the tests' own time: reading the log on a busy machine, and what the tests don't bound themselves."""
RUNNER_ITSELF = "pytest-dev__pytest-"
"""How the instances of pytest's own repository are called."""
SCRIPT = """\
#!/bin/bash
# The parsers need Python 3.10; published images have one beside that of the repository.
for python in /opt/miniconda3/bin/python python3 python; do
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null; then
    exec "$python" -I /tests/swebench_grader.py
  fi
done
echo "no Python 3.10 or newer was found to read the tests' log"
exit 1
"""


def grading_files(row: Mapping[str, Any], seconds: float) -> dict[str, bytes]:
    """The files of `tests/`, for a row that has `eval_script` and `log_parser`. The tests may take so many seconds."""
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    if row["log_parser"] not in PARSER_REGISTRY:
        raise DataError(
            f"{row['instance_id']}: log_parser {row['log_parser']!r} is unknown to the installed swebench: use one of "
            f"{', '.join(sorted(PARSER_REGISTRY))}"
        )
    spec = make_test_spec(dict(row))
    needed = {
        "instance_id": spec.instance_id,
        "repo": spec.repo,
        "version": spec.version,
        "FAIL_TO_PASS": spec.FAIL_TO_PASS,
        "PASS_TO_PASS": spec.PASS_TO_PASS,
        "log_parser": spec.log_parser,
        "eval_type": spec.eval_type,
        "seconds": seconds,
        "has_witness": _is_run_by_pytest(spec),
    }
    return {
        TEST: SCRIPT.encode(),
        "tests/eval.sh": spec.eval_script.encode(),
        "tests/row.json": (json.dumps(needed, indent=1) + "\n").encode(),
        "tests/swebench_grader.py": packed("swebench_grader.py"),
        f"tests/{PROBE}": files("agentic.tasks.mutation").joinpath("probe.py").read_bytes(),
        ARCHIVE: make_archive(),
    }


def _is_run_by_pytest(spec: Any) -> bool:
    from swebench.harness.log_parsers import PARSER_REGISTRY

    line = {"a.py::test": "PASSED"}
    try:
        reads_pytest = PARSER_REGISTRY[spec.log_parser]("PASSED a.py::test\n", spec) == line
    except (AttributeError, LookupError, ValueError) as error:
        raise DataError(
            f"{spec.instance_id}: {spec.log_parser} reads no log of this row (version {spec.version!r}): {error}"
        ) from error
    is_one_run = len(_test_commands(spec.eval_script)) == 1
    return bool(reads_pytest and is_one_run and not spec.instance_id.startswith(RUNNER_ITSELF))


def _test_commands(script: str) -> list[str]:
    """The lines between the package's marks, but for those that it adds itself."""
    from swebench.harness.constants import END_TEST_OUTPUT, START_TEST_OUTPUT, TEST_EXIT_CODE_VAR

    between = script.partition(START_TEST_OUTPUT)[2].partition(END_TEST_OUTPUT)[0].splitlines()[1:-1]
    return [line for line in between if line.strip() and TEST_EXIT_CODE_VAR not in line]


def make_archive() -> bytes:
    """The same bytes for the same versions."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("swebench/harness/__init__.py"), "")
        for name, path in _parts():
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _parts() -> Iterator[tuple[str, Path]]:
    for pattern in PARTS:
        package, _, rest = pattern.partition("/")
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise DataError(f"the package {package} is not installed: tasks from SWE-bench rows are graded by it")
        root = Path(spec.submodule_search_locations[0])
        yield from ((f"{package}/{path.relative_to(root).as_posix()}", path) for path in sorted(root.glob(rest)))
