"""The run's RayCluster as the steps use it: made from the settings, ensured by each step that needs it, and followed.

In a cluster the trainer works in the head pod, as a Ray job; `launch-cluster`, `train` and `evaluate` are light pods
that talk to the API server and to the head. Each of the three ensures the RayCluster, so that retrying any of them
alone works after cleanup has taken it away. The head's token lies in the run's folder, where its pods read it.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentic.cluster.settings import ClusterSettings
from agentic.errors import PermanentError
from agentic.rollout.settings import RolloutSettings
from agentic.training.settings import RaySettings, TrainSettings
from steps import workflow_owner
from steps.contract import Step

if TYPE_CHECKING:
    from agentic.cluster.api import KubeApi
    from agentic.cluster.ray_head import HeadWatch, RayHead
    from agentic.cluster.resources import JsonObject
    from agentic.training.head_job import HeadJob, HeadResult

ASKING_SECONDS = 15.0
"""Of a pod's grace, for asking what becomes of its job: stopping it takes most of the rest."""
TAIL_BYTES = 20_000
"""Of the engine's log that a trouble is looked for in: its end says why it ended."""


def launch(
    cluster: ClusterSettings, ray: RaySettings, train: TrainSettings, rollout: RolloutSettings, step: Step
) -> "RayHead":
    """Ensure the RayCluster; returns when its head takes jobs."""

    async def ensured() -> "RayHead":
        async with _connected(cluster) as api:
            await close_in(api, cluster, rollout, step.workspace.run_id)
            return await _ensure(api, cluster, manifest_of(cluster, ray, train, rollout, step.workspace.run_id), step)

    return asyncio.run(ensured())


def work_on_head(cluster: ClusterSettings, job: "HeadJob", step: Step) -> "HeadResult":
    """Do the job on the head of the run's RayCluster, from wherever an earlier attempt of the step has left it."""
    return asyncio.run(_work_on_head(cluster, job, step))


def end_cluster(cluster: ClusterSettings, step: Step) -> bool:
    """Remove the run's RayCluster; whether there was one."""

    async def ended() -> bool:
        from agentic.cluster.ray_clusters import remove

        async with _connected(cluster) as api:
            return await remove(api, cluster.head.name, step.workspace.run_id)

    return asyncio.run(ended())


async def _work_on_head(cluster: ClusterSettings, job: "HeadJob", step: Step) -> "HeadResult":
    from agentic.cluster.ray_head import HeadWatch
    from agentic.training.errors import TrainingError, TrainingInterrupted
    from agentic.training.following import run_on_head

    async with _connected(cluster) as api:
        work = job.job
        port: int | None = getattr(work.sandbox, "proxy_port", None)
        await close_in(api, cluster, work.rollout, work.run_id, port)
        manifest = manifest_of(cluster, work.ray, work.train, work.rollout, work.run_id)
        head = await _ensure(api, cluster, manifest, step)
        async with HeadWatch(api, head) as watch:
            try:
                return await run_on_head(
                    _Head(watch, step.workspace.run_dir), job, step.progress, _print, lambda: takes_job_along(api)
                )
            except (TrainingInterrupted, TrainingError) as error:
                trouble = lasting_trouble(job, str(error))
                if trouble is None:
                    raise
                raise PermanentError(trouble) from error


async def close_in(
    api: "KubeApi", cluster: ClusterSettings, rollout: RolloutSettings, run_id: str, proxy_port: int | None = None
) -> None:
    """Let nobody but the run's own pods reach Ray, before there is one; whoever runs rollouts opens the proxy's port. A
    trial server's sandboxes reach the proxy from wherever they are, so that with one the cluster's own rules have to
    do."""
    from agentic.cluster.apply import apply
    from agentic.cluster.objects.policies import ray_policy

    if cluster.network_policies and rollout.use_local_trial:
        await apply(api, ray_policy(cluster, run_id, proxy_port), owner=owning_workflow(cluster))


async def _ensure(api: "KubeApi", cluster: ClusterSettings, manifest: "JsonObject", step: Step) -> "RayHead":
    from agentic.cluster.patience import Patience
    from agentic.cluster.ray_clusters import ensure

    ensure_token(_token_file(step.workspace.run_dir))
    patience = Patience(passing_seconds=cluster.ray_patience_seconds, start_seconds=cluster.ray_start_seconds)

    def say(line: str) -> None:
        step.progress(0, 1, line)
        _print(f"{line}\n")

    head = await ensure(api, manifest, say, owner=owning_workflow(cluster), patience=patience)
    say(f"Ray's head is ready: pod {head.pod}, dashboard at {cluster.head.name}-head-svc:8265")
    return head


def manifest_of(
    cluster: ClusterSettings, ray: RaySettings, train: TrainSettings, rollout: RolloutSettings, run_id: str
) -> "JsonObject":
    """The RayCluster of a run: the same from each of its steps, or one would replace what the other made.

    Raises:
        PermanentError: its pods do not make the machines that training is told to use.
    """
    from agentic.cluster.objects.ray_cluster import ray_cluster
    from agentic.training.environment import head_environment

    machines = 1 + cluster.workers.replicas
    if machines != train.nodes:
        raise PermanentError(
            f"train.nodes is {train.nodes} but the RayCluster has {machines} pods: set cluster.workers.replicas to "
            f"{train.nodes - 1}"
        )
    root = Path(cluster.workspace_path)
    token = _token_file(root / "runs" / run_id)
    environment = head_environment(run_id, root, token, device=train.device, threads=train.threads or 2)
    start = {
        "num-cpus": str(ray.cpus),
        # On the CPU one logical GPU of each pod stands for the machine.
        "num-gpus": str(train.gpus_per_node),
        "object-store-memory": str(ray.object_store_bytes),
    }
    server, key = rollout.trial_server, cluster.trial_server_key
    secrets = {server.key_variable: key} if server is not None and key is not None else {}
    return ray_cluster(cluster, run_id, start=start, environment=environment, secrets=secrets)


def owning_workflow(cluster: ClusterSettings) -> "JsonObject | None":
    """The Workflow of this pod, if it lies where the RayCluster does: an owner holds within its namespace only."""
    names = (workflow_owner.NAME, workflow_owner.UID, workflow_owner.NAMESPACE)
    name, uid, namespace = (os.environ.get(variable) for variable in names)
    if not name or not uid or namespace != cluster.namespace:
        return None
    head = {"apiVersion": workflow_owner.API_VERSION, "kind": workflow_owner.KIND}
    return {**head, "metadata": {"name": name, "uid": uid}}


def _token_file(run_dir: Path) -> Path:
    from agentic.training.ray_cluster import token_file

    return token_file(run_dir)


def ensure_token(path: Path) -> str:
    """The run's token; made by the first who needs it, kept while the run's folder is. Whole or not there at all: an
    empty one would be the token of a run whose step was killed in between, for good."""
    from agentic.files import locked_folder

    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(path, lambda: None, exclusive=True):
        if not path.exists() or not path.read_text().strip():
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        return path.read_text()


@asynccontextmanager
async def _connected(cluster: ClusterSettings) -> AsyncIterator["KubeApi"]:
    from agentic.cluster.client import KubeClient
    from agentic.cluster.credentials import LoadedCredentials

    async with KubeClient(LoadedCredentials(), namespace=cluster.namespace) as client:
        yield client


class _Head:
    """A watched head, as a follower of jobs wants it."""

    def __init__(self, watch: "HeadWatch", run_dir: Path) -> None:
        self._watch = watch
        self.address = watch.head.dashboard
        self.token: str | None = _token_file(run_dir).read_text()

    def loss(self) -> str | None:
        return self._watch.loss()


async def takes_job_along(api: "KubeApi", *, within_seconds: float = ASKING_SECONDS) -> bool:
    """Whether a step that is told to end takes its job along: not when only its own pod has to move.

    A pod is told to end when its node is drained, too. The job goes on then, and the next attempt picks it up; losing
    it would cost all that was trained since the last checkpoint. Where nobody can tell, nothing is left running.
    """
    from agentic.cluster.resources import WORKFLOWS
    from agentic.errors import AgenticError

    name = os.environ.get(workflow_owner.NAME)
    if not name:
        return True
    try:
        async with asyncio.timeout(within_seconds):
            workflow = await api.get(WORKFLOWS, name)
    except (AgenticError, TimeoutError):
        return True
    is_going = (workflow.get("status") or {}).get("phase") == "Running"
    return not is_going or bool((workflow.get("spec") or {}).get("shutdown"))


def lasting_trouble(job: "HeadJob", line: str) -> str | None:
    """The name of what would end another try as well, by what the job says of its end.

    Of a training this is the exception that verl ended with. An engine only says where its log is, so its end counts.
    """
    from agentic.cluster.troubles import Evidence, find_troubles

    logs = {"end of the job": line}
    engine = job.job.run_dir / "logs" / "engine.log"
    if job.work == "evaluate" and engine.exists():
        with engine.open("rb") as file:
            file.seek(max(0, engine.stat().st_size - TAIL_BYTES))
            logs["engine.log"] = file.read().decode(errors="replace")
    for trouble in find_troubles(Evidence(logs=logs)):
        if not trouble.transient:
            return trouble.line
    return None


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
