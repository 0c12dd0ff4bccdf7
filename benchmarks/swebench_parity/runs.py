"""Runs one patch on one instance in both ways, each in a sandbox of its own.

Ours: the instance as a task from its row, the patch applied by commands in an agent's place, graded as rollouts are.
Theirs: the steps of SWE-bench's harness (apply the patch, run the script, keep the log) and then the installed
package's own `make_test_spec` and `get_eval_report` in this process.
"""

import base64
import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentic.authoring.library import make_wheels
from agentic.authoring.trying import TaskTrials
from agentic.sandbox.base import SandboxProvider, SandboxSpec
from agentic.sandbox.rootfs import RootfsStore
from agentic.tasks.harbor_format import DOCKERFILE, TaskFolder, write_task
from agentic.tasks.prepare import prepare
from agentic.tasks.settings import RowsData
from benchmarks.swebench_parity.instances import Instance

APPLY = ("git apply --verbose", "git apply --verbose --3way", "git apply --verbose --reject")
"""The ways that the harness tries, in its order."""
DATES = "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z"
PIP = "python3 -m pip install -q --no-index --find-links /opt/wheels --target /opt/site --no-deps"
IMAGE = f"""\
FROM agentic/base:local
COPY wheels/ /opt/wheels/
RUN {PIP} -r /opt/wheels/requirements.txt
ENV PYTHONPATH=/opt/site PYTHONDONTWRITEBYTECODE=1
WORKDIR /testbed
COPY repository/ /testbed/
RUN git init -q && git add -A && {DATES} git -c user.name=t -c user.email=t@t commit -qm base && git tag base
"""


def make_tasks(instances: tuple[Instance, ...], folder: Path, seconds: float) -> dict[str, Path]:
    """Instance → its task, made from rows in a file, with its image's recipe in place of a published image."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(instance.row()) + "\n" for instance in instances))
    settings = RowsData(path=str(rows), held_out_fraction=0.0, test_seconds=seconds)
    prepare(settings, folder / "set", lambda done, total, line: None)
    wheels = make_wheels(folder / "wheels")
    found = {}
    for instance in instances:
        task = folder / "set" / "tasks" / instance.instance_id
        texts = {f"environment/repository/{name}": text for name, text in instance.repository().items()}
        contents = {DOCKERFILE: IMAGE.encode()} | {name: text.encode() for name, text in texts.items()}
        contents |= {f"environment/wheels/{name}": data for name, data in wheels.items()}
        write_task(TaskFolder(task.name, contents), task)
        found[instance.instance_id] = task
    return found


async def our_verdict(trials: TaskTrials, task: Path, patch: str, seconds: float) -> bool:
    text = base64.b64encode(patch.encode()).decode()
    apply = f"cd /testbed && echo {text} | base64 -d > /tmp/p && git apply /tmp/p; rm -f /tmp/p"
    trying = await trials.commands(task, seconds, (apply,) if patch else ())
    if trying.reward is None:
        raise RuntimeError(f"{task.name}: {trying.fault or trying.lost}")
    return trying.reward == 1.0


async def their_verdict(
    provider: SandboxProvider, store: RootfsStore, task: Path, row: Mapping[str, Any], patch: str, seconds: float
) -> bool:
    from swebench.harness.grading import get_eval_report
    from swebench.harness.utils import make_test_spec

    rootfs = store.lookup(task / "environment")
    if rootfs is None:
        raise RuntimeError(f"{task.name} has no image")
    spec = make_test_spec(dict(row))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "patch.diff").write_text(patch)
        (folder / "eval.sh").write_text(spec.eval_script)
        sandbox = await provider.acquire(
            SandboxSpec("parity", f"{task.name}.{hashlib.sha256(patch.encode()).hexdigest()[:8]}", rootfs)
        )
        try:
            await sandbox.upload(folder / "patch.diff", "/tmp/patch.diff")
            await sandbox.upload(folder / "eval.sh", "/eval.sh")
            if patch and not await _is_applied(sandbox):
                return False
            result = await sandbox.exec("/bin/bash /eval.sh 2>&1", timeout_seconds=seconds)
        finally:
            await sandbox.release()
        if result.timed_out:  # the harness counts it as an error, so as not resolved
            return False
        (folder / "log.txt").write_text(result.text)
        prediction = {"instance_id": spec.instance_id, "model_patch": patch, "model_name_or_path": "parity"}
        report = get_eval_report(spec, prediction, str(folder / "log.txt"), include_tests_status=False)
        return bool(report[spec.instance_id]["resolved"])


async def _is_applied(sandbox: Any) -> bool:
    for command in APPLY:
        if (await sandbox.exec(f"{command} /tmp/patch.diff", cwd="/testbed")).exit_code == 0:
            return True
        await sandbox.exec("git checkout -- . ; git clean -fd", cwd="/testbed")
    return False
