"""The compiled workflow with short scripts in the place of its steps, for tests of what Argo's controller does with it.

What is real: the DAG, retries, fan-out, locks, deadlines, exit handler, names, labels, parameters. What is faked: each
step is a few lines of Python in the sandboxes' base image, which share a folder of this machine:

    trace          a line for each attempt, such as `train` or `build-images-1`, in the order in which they began
    plan/STEP      what the next attempts do, one a line: `exit 75`, `oom`, `wait` (until the file `go` is there),
                   `wait and fail`, `long` (outputs as long as a step's may be)
    cluster        stands for the RayCluster: launch-cluster and train make it, cleanup removes it
    runs/RUN/      where logs of steps go
"""

import copy
import json
from pathlib import Path
from typing import Any

from agentic.cluster.resources import JsonObject
from steps.build_images import NAMED_AT_MOST
from steps.contract import SUMMARY_CHARACTERS
from workflows.pipeline import build_workflow
from workflows.settings import load_settings

BASE = "agentic/base:local"
ACCOUNT = "workflow"
MEMORY = "96Mi"

PROGRAM = """
import json, pathlib, sys, time

inputs = {one["name"]: one.get("value", "") for one in {{inputs.parameters}}}
step, outputs, place = STEP, OUTPUTS, pathlib.Path("/stand-in")
name = step + ("-" + inputs["shard"].partition("/")[0] if "shard" in inputs else "")
logs = place / "runs" / inputs["run_id"] / "logs"
logs.mkdir(parents=True, exist_ok=True)

def say(line):
    print(line, flush=True)
    with (logs / f"{name}.log").open("a") as log:
        log.write(line + "\\n")

with (place / "trace").open("a") as trace:
    trace.write(name + "\\n")
say(f"{name} of run {inputs['run_id']} begins")
plan = place / "plan" / name
todo = plan.read_text().splitlines() if plan.exists() else []
if todo:
    plan.write_text("".join(line + "\\n" for line in todo[1:]))
action = todo[0] if todo else ""
if step == "launch-cluster":
    (place / "cluster").touch()
if step == "train" and not (place / "cluster").exists():
    say("train makes the cluster anew")
    (place / "cluster").touch()
if step == "cleanup":
    (place / "cluster").unlink(missing_ok=True)
if action == "oom":
    held = [bytearray(1 << 20) for _ in range(4096)]
while action.startswith("wait") and not (place / "go").exists():
    time.sleep(0.1)
action = "exit 75" if action == "wait and fail" else action
if action.startswith("exit"):
    pathlib.Path("/dev/termination-log").write_text(f"{name} was told to leave with {action}\\n")
    sys.exit(int(action.split()[1]))
known = {"summary": f"{name} is done", "checkpoint": "checkpoints/global_step_4"}
if action == "long":
    broken = [f"organisation__repository-name-{index:05d}" for index in range(NAMED_AT_MOST)]
    known |= {"summary": "s" * SUMMARY_CHARACTERS, "broken": json.dumps(broken)}
for parameter, path in outputs.items():
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_text(known.get(parameter, "0.5"))
say(f"{name} ends")
"""


def stand_in(
    folder: Path,
    namespace: str,
    run_id: str,
    *,
    start_from: str = "preflight",
    shards: int = 2,
    arguments: tuple[str, ...] = (),
    attempt: int = 1,
) -> JsonObject:
    """A Workflow whose steps play `folder/plan`."""
    (folder / "plan").mkdir(parents=True, exist_ok=True)
    given = [f"cluster.namespace={namespace}", f"cluster.service_account={ACCOUNT}", "cluster.retry_seconds=1"]
    settings = load_settings("demo", [*given, f"images.shards={shards}", *arguments], {})
    document = copy.deepcopy(build_workflow(settings, "demo", run_id, start_from, attempt))
    for template in document["spec"]["templates"]:
        if "script" in template:
            _play(template, folder)
    return document


def _play(template: dict[str, Any], folder: Path) -> None:
    written = template.get("outputs", {}).get("parameters", [])
    outputs = {parameter["name"]: parameter["valueFrom"]["path"] for parameter in written}
    given = {"STEP": template["name"], "OUTPUTS": outputs}
    given |= {"NAMED_AT_MOST": NAMED_AT_MOST, "SUMMARY_CHARACTERS": SUMMARY_CHARACTERS}
    source = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + PROGRAM
    template["script"] = {
        "image": BASE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3"],
        "source": source,
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"cpu": "1", "memory": MEMORY},
        },
        "volumeMounts": [{"name": "stand-in", "mountPath": "/stand-in"}],
    }
    template["volumes"] = [{"name": "stand-in", "hostPath": {"path": str(folder)}}]
    template["podSpecPatch"] = json.dumps({"terminationGracePeriodSeconds": 2})


def plan(folder: Path, step: str, *actions: str) -> None:
    """What the next attempts at a step do."""
    (folder / "plan").mkdir(parents=True, exist_ok=True)
    (folder / "plan" / step).write_text("".join(f"{action}\n" for action in actions))


def trace(folder: Path) -> list[str]:
    """The attempts so far."""
    path = folder / "trace"
    return path.read_text().split() if path.exists() else []
