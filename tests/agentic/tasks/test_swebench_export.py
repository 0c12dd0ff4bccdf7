"""Tasks as Harbor's SWE-bench adapter writes them: their grader fetches packages, which no sandbox lets it."""

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentic.authoring.library import RegistryError, make_wheels
from agentic.authoring.trying import task_trials
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import CONFIG, DOCKERFILE, INSTRUCTION, TEST, TaskFolder, write_task
from agentic.tasks.prepare import prepare
from agentic.tasks.settings import SweBenchData
from agentic.tasks.swebench_export import PARSERS, ROW, graded_here
from benchmarks.swebench_parity.instances import INSTANCES, TEST_FILE, Instance
from benchmarks.swebench_parity.runs import IMAGE, our_verdict

SCRIPT = """\
#!/bin/bash
# A canary.

#!/bin/bash
        set -uo pipefail -x

        cd /testbed
        set +x
        {activate}
        set -x

        git config --global --add safe.directory /testbed

        # First what the test patch touches is put back.
        git checkout base {test_file}

        echo '{test_patch}' > /tmp/test_patch.diff
        git apply --check /tmp/test_patch.diff
        git apply /tmp/test_patch.diff

        LOG_FILE=$(mktemp)
        export LOG_FILE
        exec 3>&1 4>&2
        exec > >(tee "$LOG_FILE") 2>&1

        set +x
        {command} || true
        exec 1>&3 2>&4 # stop record
        exec 1>&3 2>&4 # stop record
        git checkout base {test_file}

cd ..
cat > parser.py <<EOF
# /// script
# requires-python = ">=3.11"
# dependencies = ["swebench==4.1.0", "datasets==2.16.1"]
# ///
import swebench
EOF
set +e
uv run parser.py | tee -a "$LOG_FILE"
exit_code=$?
if [ "${{exit_code}}" -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
exit "${{exit_code}}"
"""
CONFIG_TEXT = (
    "[verifier]\ntimeout_sec = 165.0\n\n[agent]\ntimeout_sec = 60.0\n\n[environment]\nbuild_timeout_sec = 600.0\n"
)


def exported(
    instance: Instance, *, repo: str, script: str = SCRIPT, row: Mapping[str, Any] | None = None
) -> TaskFolder:
    """One of the instances that parity is tried on, in the form of Harbor's adapter."""
    known = instance.row()
    columns = ("instance_id", "base_commit", "patch", "test_patch", "problem_statement", "version")
    published = {name: known[name] for name in columns} | {"repo": repo}
    published |= {name: json.dumps(known[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    text = script.format(
        activate=":", test_file=TEST_FILE, test_patch=known["test_patch"].rstrip("\n"), command=instance.command
    )
    files = {
        CONFIG: CONFIG_TEXT,
        INSTRUCTION: known["problem_statement"] + "\n",
        DOCKERFILE: f"FROM swebench/{instance.name}:latest\nWORKDIR /testbed\n",
        TEST: text,
        ROW: json.dumps(published | dict(row or {})),
    }
    return TaskFolder(instance.instance_id, {name: text.encode() for name, text in files.items()})


def named(name: str) -> Instance:
    (found,) = (instance for instance in INSTANCES if instance.name == name)
    return found


@pytest.mark.timeout(180)  # importing swebench brings datasets, docker and modal
def test_its_tests_run_between_the_packages_marks_and_nothing_is_fetched() -> None:
    task = graded_here(exported(INSTANCES[0], repo="pallets/flask"))
    script = task.files["tests/eval.sh"].decode()
    lines = [line.strip() for line in script.splitlines()]
    begin, end = lines.index(": '>>>>> Start Test Output'"), lines.index(": '>>>>> End Test Output'")
    assert lines[begin + 1 : end] == [INSTANCES[0].command, "SWEBENCH_TEST_EXIT_CODE=$?"], "not what `|| true` says"
    assert lines[:2] == ["#!/bin/bash", "set -uxo pipefail"]
    assert lines[-1] == f"git checkout base {TEST_FILE}"
    assert not [word for word in ("uv run", "LOG_FILE", "exec") if word in script]
    assert INSTANCES[0].row()["test_patch"].rstrip("\n") in script, "the patch is as it was, indented nowhere"
    row = json.loads(task.files["tests/row.json"])
    assert row["log_parser"] == "parse_log_flask"
    assert row["FAIL_TO_PASS"] == INSTANCES[0].lists()[0]
    assert row["seconds"] == 60.0, "the least, since the task's own limit leaves less"
    assert ROW not in task.files, "it has the reference patch in it"


@pytest.mark.timeout(180)
def test_a_patch_that_looks_like_the_script_is_taken_for_none() -> None:
    lookalikes = " set -uo pipefail\n+cat > parser.py <<EOF\n+        exec > >(tee x) 2>&1\n+        exec 1>&3 2>&4"
    script = SCRIPT.replace("echo '{test_patch}'", f"echo '{lookalikes}\n{{test_patch}}'")
    task = graded_here(exported(INSTANCES[0], repo="pallets/flask", script=script))
    assert lookalikes in task.files["tests/eval.sh"].decode()


@pytest.mark.timeout(180)
def test_every_repository_of_verified_has_a_parser_of_the_installed_package() -> None:
    from swebench.harness.log_parsers import PARSER_REGISTRY

    assert len(PARSERS) == 12
    assert set(PARSERS.values()) <= set(PARSER_REGISTRY)


def test_what_fetches_and_is_not_understood_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"no log parser is known for local/x: add log_parser"):
        graded_here(exported(INSTANCES[0], repo="local/x"))
    with pytest.raises(DataError, match="where its tests begin and end is not as Harbor's adapter writes it"):
        graded_here(exported(INSTANCES[0], repo="pallets/flask", script=SCRIPT.replace("(tee", "(cat")))
    with pytest.raises(DataError, match="is no row of SWE-bench"):
        graded_here(exported(INSTANCES[0], repo="pallets/flask", row={"FAIL_TO_PASS": 3}))
    task = exported(INSTANCES[0], repo="pallets/flask")
    without = TaskFolder(task.task_id, {name: data for name, data in task.files.items() if name != ROW})
    with pytest.raises(DataError, match="sandboxes reach no network"):
        graded_here(without)


def test_a_task_that_fetches_nothing_is_left_as_it_is() -> None:
    task = exported(INSTANCES[0], repo="local/x", script="#!/bin/sh\npytest && echo 1 > /logs/verifier/reward.txt\n")
    assert graded_here(task) is task


COPY = """\
import shutil, sys
shutil.copytree({source!r}, sys.argv[sys.argv.index("--output-dir") + 1], dirs_exist_ok=True)
"""


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
@pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")
def test_what_harbor_downloads_is_graded_in_a_sandbox_without_a_network(tmp_path: Path) -> None:
    chosen = {"psf/requests": INSTANCES[0], "django/django": named("django-like")}
    for repo, instance in chosen.items():
        write_task(exported(instance, repo=repo), tmp_path / "published" / instance.instance_id)
    (tmp_path / "download.py").write_text(COPY.format(source=str(tmp_path / "published")))
    command = (sys.executable, str(tmp_path / "download.py"))
    prepare(SweBenchData(command=command, tasks=2, train=1), tmp_path / "set", lambda done, total, line: None)
    try:
        wheels = make_wheels(tmp_path / "wheels")
    except RegistryError:
        pytest.skip("no package registry can be reached, from which the instances' pytest comes")
    for instance in chosen.values():
        files = {f"environment/repository/{name}": text.encode() for name, text in instance.repository().items()}
        files |= {f"environment/wheels/{name}": data for name, data in wheels.items()}
        write_task(TaskFolder(instance.instance_id, files | {DOCKERFILE: IMAGE.encode()}), _task(tmp_path, instance))
    verdicts = asyncio.run(_verdicts(tmp_path, list(chosen.values())))
    assert verdicts == {(one.instance_id, kind): kind == "gold" for one in chosen.values() for kind in KINDS}


KINDS = ("gold", "empty", "wrong", "forged")


def _task(folder: Path, instance: Instance) -> Path:
    return folder / "set/tasks" / instance.instance_id


async def _verdicts(folder: Path, instances: list[Instance]) -> dict[tuple[str, str], bool]:
    tasks = [_task(folder, instance) for instance in instances]
    found = {}
    async with task_trials(tasks, folder / "images", BubblewrapSandbox(), 2) as (trials, broken):
        assert not broken
        for instance, task in zip(instances, tasks, strict=True):
            patches = instance.patches()
            for kind in KINDS:
                found[instance.instance_id, kind] = await our_verdict(trials, task, patches[kind], 165.0)
    return found
