"""A task set on a claim of the real cluster, and the step that builds its images there, for tests of build-images."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentic.cluster.objects.image_build import KEY_LABEL
from agentic.cluster.settings import ClusterSettings
from agentic.images.job_builder import CHECK_KEY
from agentic.sandbox.images import pins_folder
from agentic.sandbox.settings import PodSandbox
from testbed.access import ClusterAccess
from testbed.pipeline_image import IMAGE, import_pipeline_image, push_base
from testbed.storage import make_volumes, remove_volumes

ROOT = Path(__file__).resolve().parents[2]
RUN = "images"
PARALLEL = 3


@dataclass
class Site:
    """A workspace whose data sets are a claim of the cluster, and the step that builds their images."""

    cluster: ClusterAccess
    namespace: str
    workspace: Path
    base_image: str
    registry: str
    """Host and path that images are pushed to; spoken to in the clear."""
    buildkit: dict[str, Any] = field(default_factory=dict)
    """`cluster.buildkit`."""
    login: Path | None = None
    """Folder of the step's own credentials."""
    most_at_once: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def sandbox(self) -> PodSandbox:
        return PodSandbox(registry=self.registry, base_image=self.base_image)

    def add_task(self, name: str, dockerfile: str) -> Path:
        folder = self.workspace / "datasets/d/tasks" / name
        (folder / "environment").mkdir(parents=True)
        (folder / "task.toml").write_text("")
        (folder / "environment/Dockerfile").write_text(dockerfile)
        return folder

    def start(self, **images: Any) -> "subprocess.Popen[bytes]":
        inputs = {
            "run_id": RUN,
            "data_dir": "datasets/d",
            "shard": "0/1",
            "images": {
                "parallelism": PARALLEL,
                "builder_image": IMAGE,
                "buildkit_address": f"tcp://{self.cluster.layout.builder}",
                "retry_seconds": 1,
                **images,
                "registry": {"plain_http": [self.registry.partition("/")[0]], **images.get("registry", {})},
            },
            "sandbox": self.sandbox.model_dump(mode="json"),
            "cluster": {
                "namespace": self.namespace,
                "workspace_path": str(self.workspace),
                "buildkit": self.buildkit,
            },
        }
        path = self.workspace / "inputs.json"
        path.write_text(json.dumps(inputs))
        named = {"AGENTIC_WORKSPACE": str(self.workspace), "AGENTIC_TARGET": "argo", "PYTHONPATH": str(ROOT)}
        named |= {} if self.login is None else {"DOCKER_CONFIG": str(self.login)}
        command = [sys.executable, "-m", "steps.build_images", "--inputs", str(path)]
        with self.log.open("w") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=os.environ | named, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    @property
    def log(self) -> Path:
        """What the step printed that was started last."""
        return self.workspace / "printed.log"

    def jobs(self) -> list[dict[str, Any]]:
        """Those that build; how many run at once is noted."""
        found = self.cluster.get("jobs", f"--namespace={self.namespace}", "--selector=type=image-build")["items"]
        builds = [job for job in found if job["metadata"]["labels"][KEY_LABEL] != CHECK_KEY]
        running = [job for job in builds if not any(end in str(job["status"]) for end in ("'Complete'", "'Failed'"))]
        self.most_at_once = max(self.most_at_once, len(running))
        return builds

    def results(self) -> dict[str, dict[str, Any]]:
        """The last word about each task."""
        lines = [
            line
            for path in pins_folder(self.workspace / "images", RUN).glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return {row["task"]: row for row in map(json.loads, lines)}

    def watch(self, is_enough: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_enough():
            assert time.monotonic() < deadline, (
                f"after {seconds} s: {Counter(r['status'] for r in self.results().values())}"
            )
            self.jobs()
            time.sleep(0.3)


@contextlib.contextmanager
def build_site(cluster: ClusterAccess, namespace: str, folder: Path, registry: str = "") -> Iterator[Site]:
    """With the registry of the cluster unless another one is named."""
    import_pipeline_image(cluster.layout)
    settings = ClusterSettings(namespace=namespace)
    volumes = make_volumes(cluster, namespace, [settings.datasets], folder / "volumes")
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec}
    cluster.apply({**claim, "metadata": {"name": settings.datasets.claim, "namespace": namespace}})
    workspace = folder / "workspace"
    workspace.mkdir()
    (workspace / "datasets").symlink_to(volumes[settings.datasets.claim])
    where = registry or f"{cluster.layout.registry}/{namespace}"
    site = Site(cluster, namespace, workspace, push_base(cluster.layout), where)
    try:
        yield site
    finally:
        for process in site.processes:
            process.kill()
            process.wait()
        remove_volumes(cluster, namespace)
