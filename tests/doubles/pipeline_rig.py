"""The workflow on the real Argo controller for tests: a namespace with volumes, and the commands that people type.

Real are the controller, its executor, the pods, the volumes and the programs. What stands in: images. The steps' image
holds nothing of ours, the checkout's environment is shown to the pods from the machine (`testbed.pipeline_image`).
Everything that is done is noted as a transcript.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentic.cluster.objects.claims import claims_of
from agentic.cluster.resources import JsonObject
from testbed.access import ClusterAccess
from testbed.pipeline_image import NAME as IMAGE
from testbed.pipeline_image import host_mounts, import_pipeline_image, push_base
from testbed.storage import make_volumes, remove_volumes
from testbed.tools import ARGO, KUBERNETES, Toolbox
from workflows.argo.nodes import is_over as has_ended
from workflows.argo.nodes import nodes_of
from workflows.settings import load_settings

REPOSITORY = Path(__file__).parents[2]
PROFILE = "cluster-demo"
RUN_LABEL = "agentic-rl/run"
WIDEST = 300
"""Characters of a line of the transcript: Argo prints all parameters of a Workflow that it retries."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
QUIET_SECONDS = 900.0
"""Without any sign of life of a run: longer than its longest silence, the start of a trainer on a busy machine."""


LOOK_SECONDS = 1.0


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    said: str
    """Both streams."""


@dataclass
class Transcript:
    """What was typed, what was said, and what happened meanwhile, with the seconds since the start."""

    path: Path
    """Written line by line, so that one can look on, and that a killed test leaves it too."""
    started: float = field(default_factory=time.monotonic)
    hidden: dict[str, str] = field(default_factory=dict)
    """Text that only this machine has → what is written for it."""

    def note(self, text: str) -> None:
        for long, short in self.hidden.items():
            text = text.replace(long, short)
        seconds = f"{time.monotonic() - self.started:6.1f} s"
        lines = [f"[{seconds}] {line}"[:WIDEST].rstrip() for line in text.rstrip().splitlines()]
        with self.path.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))


class Node(NamedTuple):
    """One node of a Workflow's status."""

    name: str
    kind: str
    phase: str
    message: str
    pod: str
    """Empty unless it is a pod's."""


@dataclass
class Pipeline:
    """One namespace in which runs are made; they share its volumes, as users' do."""

    cluster: ClusterAccess
    namespace: str
    volumes: Mapping[str, Path]
    """Claim → its folder on this machine."""
    settings: Sequence[str]
    """Given with each submission."""
    transcript: Transcript
    seen: set[tuple[str, Node]] = field(default_factory=set)
    """Nodes as they were noted, by their Workflow."""

    def run_dir(self, run_id: str) -> Path:
        return self.volumes["verl-runs"] / "runs" / run_id

    def submit(self, run_id: str, *more: str) -> str:
        """Create the Workflow by our command; its name."""
        ended = self.command("submit", "--profile", PROFILE, "--run-id", run_id, *self.settings, *more)
        assert ended.code == 0, ended.said
        return f"agentic-rl-{run_id}"

    def command(self, *words: str, timeout_seconds: float = 900) -> Ended:
        """`python3 workflows/submit.py WORDS`, as somebody with kubectl access."""
        command = [sys.executable, "workflows/submit.py", *words]
        return self._run("python3 workflows/submit.py", words, command, timeout_seconds)

    def of_run(self, verb: str, run_id: str, *more: str) -> Ended:
        """A verb about a run."""
        return self.command(verb, run_id, *more, self.settings[0])

    def argo(self, *words: str) -> Ended:
        """Argo's own command line."""
        program = str(Toolbox(self.cluster.layout).path("argo"))
        where = [f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={self.namespace}"]
        return self._run("argo", words, [program, *words, *where], 120)

    def argo_retry(self, name: str) -> None:
        """`argo retry`, and what docs/pipeline.md has people do where it did not wait for the pods that it deleted."""
        assert self.argo("retry", name).code == 0
        where = (f"--namespace={self.namespace}", f"--selector=workflows.argoproj.io/workflow={name}")
        ending = "{.items[*].metadata.deletionTimestamp}"
        self.wait(
            lambda: not self.cluster.kubectl("get", "pods", *where, f"--output=jsonpath={ending}"),
            "the deleted pods to go",
            300,
            lambda: self.describe(name),
        )
        woken = f"agentic-rl/woken={time.time():.0f}"
        self.cluster.kubectl("annotate", "--overwrite", "workflow", name, where[0], woken)

    def _run(self, shown: str, words: Sequence[str], command: Sequence[str], timeout_seconds: float) -> Ended:
        self.transcript.note(f"$ {shown} {' '.join(word for word in words if word not in self.settings)}")
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig), "COLUMNS": "120", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )
        self.transcript.note(COLOURS.sub("", done.stdout) or "(nothing)")
        if done.returncode:
            self.transcript.note(f"exit code {done.returncode}")
        return Ended(done.returncode, done.stdout)

    def workflow(self, name: str) -> JsonObject:
        return self.cluster.get("workflow", name, f"--namespace={self.namespace}")

    def phase(self, name: str) -> str:
        return phase_in(self.workflow(name))

    def nodes(self, name: str) -> list[Node]:
        return nodes_in(self.workflow(name))

    def steps(self, name: str) -> dict[str, str]:
        """The phase of each step, as `status` says it."""
        return {node.name: node.phase for node in nodes_of(self.workflow(name))}

    def attempts(self, name: str, step: str) -> list[Node]:
        """The pods of a step, first to last."""
        return attempts_in(self.workflow(name), step)

    def wait_until_over(self, name: str, quiet_seconds: float = QUIET_SECONDS) -> str:
        """Its phase, once its exit handler has ended too."""

        def phase_at_the_end(workflow: JsonObject) -> str:
            return phase_in(workflow) if has_ended(workflow) else ""

        return self.wait_for_run(name, phase_at_the_end, "to end", quiet_seconds)

    def wait_for_pod(self, name: str, step: str, attempt: int = 0) -> str:
        """The pod of a step's attempt, once its container runs."""

        def running(workflow: JsonObject) -> str:
            pods = attempts_in(workflow, step)
            is_there = len(pods) > attempt and pods[attempt].phase == "Running"
            return pods[attempt].pod if is_there and self.is_ready(pods[attempt].pod) else ""

        return self.wait_for_run(name, running, f"until its step {step} runs")

    def is_ready(self, pod: str) -> bool:
        with contextlib.suppress(RuntimeError):
            conditions = self.cluster.get("pod", pod, f"--namespace={self.namespace}")["status"].get("conditions", [])
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        return False

    def wait_for_run[T](
        self, name: str, look: Callable[[JsonObject], T], what: str, quiet_seconds: float = QUIET_SECONDS
    ) -> T:
        """Until `look` gives something; fails when neither its nodes nor its steps' reports have changed for so long.
        How long all of it takes is the machine's business. Every node that changes meanwhile is noted."""
        deadline, known = 0.0, None
        while not (found := look(workflow := self._looked_at(name))):
            if (signs := self._signs(workflow)) != known:
                deadline, known = time.monotonic() + quiet_seconds, signs
            if has_ended(workflow):
                pytest.fail(f"{name} {what}: it is {phase_in(workflow)} by now: {self.describe(name)}")
            if time.monotonic() > deadline:
                pytest.fail(f"{name} {what}: silent for {quiet_seconds:.0f} s: {self.describe(name)}")
            time.sleep(LOOK_SECONDS)
        return found

    def _looked_at(self, name: str) -> JsonObject:
        workflow = self.workflow(name)
        for node in nodes_in(workflow):
            if node.kind == "Pod" and (name, node) not in self.seen:
                self.seen.add((name, node))
                self.transcript.note(f"    {node.name}: {node.phase} {node.message}".rstrip())
        return workflow

    def _signs(self, workflow: JsonObject) -> object:
        """What shows that it goes on."""
        folder = self.run_dir(run_of(workflow)) / "progress"
        reports = {report.name: report.read_text(errors="replace") for report in sorted(folder.glob("*.json"))}
        return nodes_in(workflow), reports

    def wait[T](self, look: Callable[[], T], what: str, timeout_seconds: float, why: Callable[[], str]) -> T:
        deadline = time.monotonic() + timeout_seconds
        while not (found := look()):
            assert time.monotonic() < deadline, f"waited {timeout_seconds:.0f} s for {what}: {why()}"
            time.sleep(0.5)
        return found

    def inside(self, pod: str, *words: str) -> str:
        """A command in a step's container."""
        self.transcript.note(f"$ kubectl exec {pod} -c main -- {' '.join(words)}")
        return self.cluster.kubectl("exec", f"--namespace={self.namespace}", pod, "-c", "main", "--", *words)

    def logs(self, pod: str) -> str:
        return self.cluster.kubectl("logs", f"--namespace={self.namespace}", pod)

    def head_pod(self) -> str:
        """That of the namespace's RayCluster."""
        where = (f"--namespace={self.namespace}", "--selector=ray.io/node-type=head")
        (found,) = self.cluster.get("pods", *where)["items"]
        return str(found["metadata"]["name"])

    def delete_pod(self, pod: str) -> None:
        self.transcript.note(f"$ kubectl delete pod {pod}")
        self.cluster.kubectl("delete", "pod", pod, f"--namespace={self.namespace}", "--wait=false")

    def evict_pod(self, pod: str) -> None:
        """As `kubectl drain` does to the pods of a node."""
        self.transcript.note(f"$ kubectl create --raw .../pods/{pod}/eviction")
        metadata = {"name": pod, "namespace": self.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        self.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    def resubmitted(self, name: str) -> str:
        """The newest Workflow that was made of this one."""
        found = self.cluster.get("workflows", f"--namespace={self.namespace}")["items"]
        made = [one["metadata"] for one in found if one["metadata"]["name"].startswith(f"{name}-")]
        return str(max(made, key=lambda metadata: str(metadata["creationTimestamp"]))["name"])

    def describe(self, name: str) -> str:
        """For a failed test: the nodes, and the ends of the steps' logs."""
        lines = [f"{node.name} {node.phase} {node.message}" for node in self.nodes(name) if node.kind == "Pod"]
        for log in sorted((self.run_dir(run_of(self.workflow(name))) / "logs").glob("*.log")):
            lines += [f"-- {log.name}", *log.read_text(errors="replace").splitlines()[-8:]]
        return "\n".join([*lines, json.dumps(self.events())[:3000]])

    def events(self) -> list[str]:
        found = self.cluster.get("events", f"--namespace={self.namespace}")["items"]
        return [f"{one['reason']}: {one.get('message', '')}" for one in found if one.get("type") != "Normal"]

    def labelled(self, run_id: str) -> list[str]:
        """Every object of the namespace with the run's label, as kind/name."""
        listed = self.cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
        kinds = [kind for kind in listed if not kind.startswith("events")]
        where = (f"--namespace={self.namespace}", f"--selector={RUN_LABEL}={run_id}", "-o", "name")
        return self.cluster.kubectl("get", ",".join(kinds), "--ignore-not-found", *where).split()

    def working(self, run_id: str) -> list[str]:
        """The same without the Workflow and without pods and Jobs that have ended, which only hold their logs."""
        where = (f"--namespace={self.namespace}", f"--selector={RUN_LABEL}={run_id}")
        held = self.cluster.get("pods,jobs.batch", *where)["items"]
        ended = {f"{kind_of(body)}/{body['metadata']['name']}" for body in held if is_ended(body)}
        return [one for one in self.labelled(run_id) if one not in ended and not one.startswith("workflow.")]


def kind_of(body: Mapping[str, Any]) -> str:
    """As kubectl writes it before a name."""
    return "pod" if body["kind"] == "Pod" else "job.batch"


def is_ended(body: Mapping[str, Any]) -> bool:
    """Of a pod or a Job."""
    if body["kind"] == "Pod":
        return body["status"].get("phase") in ("Succeeded", "Failed")
    conditions = body["status"].get("conditions") or []
    return any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in conditions)


def run_of(workflow: JsonObject) -> str:
    return str(workflow["metadata"]["labels"][RUN_LABEL])


def phase_in(workflow: JsonObject) -> str:
    return str(workflow.get("status", {}).get("phase", ""))


def nodes_in(workflow: JsonObject) -> list[Node]:
    """In the order of their start. Argo calls the exit handler by the Workflow; here it has its step's name."""
    name = workflow["metadata"]["name"]
    found = workflow.get("status", {}).get("nodes", {}).values()
    return [
        Node(
            str(node["displayName"]).replace(f"{name}.onExit", str(node.get("templateName"))),
            str(node["type"]),
            str(node["phase"]),
            str(node.get("message", "")),
            pod_name(node) if node["type"] == "Pod" else "",
        )
        for node in sorted(found, key=lambda node: str(node.get("startedAt") or "9"))
    ]


def attempts_in(workflow: JsonObject, step: str) -> list[Node]:
    """The pods of a step, first to last."""
    return [node for node in nodes_in(workflow) if node.kind == "Pod" and node.name.partition("(")[0] == step]


def pod_name(node: Mapping[str, Any]) -> str:
    """As the controller names pods: workflow, template, hash of the node."""
    template = node.get("templateName", "")
    identity = str(node["id"])
    workflow, _, digest = identity.rpartition("-")
    return f"{workflow}-{template}-{digest}"


def settings_of(cluster: ClusterAccess, namespace: str, base_image: str) -> list[str]:
    """What a user of this cluster names: namespace, images, registry, BuildKit, storage, folders of the nodes."""
    registry = cluster.layout.registry
    return [
        f"cluster.namespace={namespace}",
        f"cluster.steps_image={IMAGE}",
        f"cluster.trainer_image={IMAGE}",
        f"cluster.mounts={host_mounts()}",
        *(f"cluster.{claim}.storage_class=" for claim in ("models", "datasets", "runs")),
        f"sandbox.base_image={base_image}",
        f"sandbox.image_pattern={registry}/{namespace}/{{task}}:{{environment}}",
        f"images.buildkit_address=tcp://{cluster.layout.builder}",
        f"images.registry.plain_http={json.dumps([registry])}",
    ]


@contextlib.contextmanager
def pipeline_space(cluster: ClusterAccess, folder: Path, transcript: Transcript) -> Iterator[Pipeline]:
    """A namespace of its own with volumes for the claims that submit makes; it goes away in the background."""
    namespace = f"pipeline-{uuid.uuid4().hex[:8]}"
    import_pipeline_image(cluster.layout)
    cluster.kubectl("create", "namespace", namespace)
    try:
        cluster.kubectl("wait", f"--namespace={namespace}", "--for=create", "serviceaccount/default", "--timeout=60s")
        settings = settings_of(cluster, namespace, push_base(cluster.layout))
        claims = claims_of(load_settings(PROFILE, settings, {}).cluster).values()
        volumes = make_volumes(cluster, namespace, claims, folder)
        memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        transcript.note(
            f"Kubernetes {KUBERNETES}, Argo {ARGO}, one node: {os.cpu_count()} cores, {memory_gib:.0f} GiB. "
            "The settings that name this cluster's namespace, images, registry and storage are left out of commands."
        )
        transcript.hidden |= {
            namespace: "NAMESPACE",
            str(folder): "VOLUMES",
            str(REPOSITORY): "CHECKOUT",
            sys.base_prefix: "PYTHON",
        }
        yield Pipeline(cluster, namespace, volumes, settings, transcript)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
        remove_volumes(cluster, namespace)


def begun(path: Path) -> Transcript:
    """A new one in the place of an older."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return Transcript(path)
