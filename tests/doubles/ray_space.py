"""A namespace of the real cluster with the workspace's claims and the pipeline's account, for tests of Ray's pods.

    with ray_space(cluster, namespace, tmp_path) as space:
        space.settings.head.name ...

The workspace lies at the same path here and in the pods, so that a step that runs here and a job that runs there mean
the same files. The trainer's environment lies on the node (`testbed.pipeline_image`).
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.cluster.objects.claims import claims, claims_of
from agentic.cluster.objects.rights import pipeline_rules
from agentic.cluster.settings import ClusterSettings
from testbed.access import ClusterAccess
from testbed.pipeline_image import NAME as IMAGE
from testbed.pipeline_image import host_mounts, import_pipeline_image
from testbed.storage import remove_volumes, volume

CLAIMS = ("models", "datasets", "runs")
HEAD = ("-l", "ray.io/node-type=head")


@dataclass(frozen=True)
class Space:
    """What a test works in."""

    cluster: ClusterAccess
    settings: ClusterSettings
    root: Path
    """The workspace: at the same path here and in pods."""
    account: Path
    """Kubeconfig of the pipeline's account."""

    @property
    def namespace(self) -> str:
        return self.settings.namespace

    def head_pod(self) -> str:
        """Such as `pod/raycluster-verl-head-x`; empty when there is none."""
        return self.cluster.kubectl("get", "pods", f"--namespace={self.namespace}", *HEAD, "-o", "name").strip()

    def log(self, pod: str) -> str:
        return self.cluster.kubectl("logs", f"--namespace={self.namespace}", pod)


@contextmanager
def ray_space(cluster: ClusterAccess, namespace: str, folder: Path) -> Iterator[Space]:
    """The space; what was made in it goes in the background."""
    import_pipeline_image(cluster.layout)
    root = folder / "workspace"
    chosen = ClusterSettings.model_validate(cluster_settings(namespace, root))
    folders = {"runs": root, "models": root / "models", "datasets": root / "datasets"}
    for name, claim in claims_of(chosen).items():
        folders[name].mkdir(parents=True, exist_ok=True)
        cluster.apply(volume(namespace, claim, folders[name]))
    cluster.apply(*claims(chosen))
    account = cluster.make_account(chosen.service_account, namespace, pipeline_rules(), folder / "kubeconfig")
    try:
        yield Space(cluster, chosen, root, account.kubeconfig)
    finally:
        cluster.kubectl("delete", "raycluster", "--all", f"--namespace={namespace}", "--wait=false")
        remove_volumes(cluster, namespace)


def cluster_settings(namespace: str, root: Path) -> dict[str, Any]:
    """The settings section `cluster`; small shares, since tests share two cores."""
    return {
        "namespace": namespace,
        "steps_image": IMAGE,
        "trainer_image": IMAGE,
        "workspace_path": str(root),
        "mounts": json.loads(host_mounts()),
        **{name: {"claim": f"verl-{name}", "size": "1Gi", "storage_class": ""} for name in CLAIMS},
        "head": {"gpus": 0, "cpus": 0.7, "memory": "3Gi"},
        "workers": {"replicas": 0, "gpus": 0, "cpus": 0.4, "memory": "2Gi"},
    }


def wait(check: Callable[[], object], file: Path, seconds: float) -> None:
    """For a condition; tells what a file holds when it does not come about."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, file.read_text(errors="replace")
        time.sleep(0.2)
