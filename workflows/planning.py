"""What a run would do, from its settings and from what the workspace holds. Starts and downloads nothing."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentic.training.errors import SizingError
from agentic.training.sizing import read_shape, resolve
from workflows.settings import Settings, known_tasks


def describe(settings: Settings, document: Mapping[str, Any], workspace: Path) -> Iterator[str]:
    """Lines for people, of a run on a cluster."""
    yield f"workflow    {document['metadata']['name']} in namespace {document['metadata']['namespace']}"
    yield from describe_work(settings, workspace)
    yield from _machines(settings, document)
    yield from describe_steps(settings, document)


def describe_here(settings: Settings, document: Mapping[str, Any], workspace: Path) -> Iterator[str]:
    """Lines for people, of a run on this machine."""
    yield f"target      this machine, workspace {workspace}"
    yield from describe_work(settings, workspace)
    yield from describe_steps(settings, document)


def describe_work(settings: Settings, workspace: Path) -> Iterator[str]:
    """What is computed, and how large: the same wherever it runs."""
    train = settings.train
    tasks = known_tasks(settings.data)
    held_out = f"{tasks} tasks" if tasks is not None else "tasks of a folder or file"
    data, model = _data(settings, workspace), _model(settings, workspace)
    yield f"data        {settings.data.source} -> datasets/{settings.data.name}: {held_out}, {_there(data)}"
    yield f"model       {settings.model.source} -> models/{settings.model.name}: {_there(model)}"
    yield (
        f"training    {train.algorithm} on {train.nodes} x {train.gpus_per_node} {train.device}: {train.steps} steps "
        f"of {train.prompts_per_step} tasks x {train.rollouts_per_prompt} rollouts = "
        f"{train.steps * train.prompts_per_step * train.rollouts_per_prompt} rollouts"
    )
    yield f"schedule    validation every {train.validate_every} steps, checkpoint every {train.save_every}"
    yield from _sizes(settings, workspace)


def describe_steps(settings: Settings, document: Mapping[str, Any]) -> Iterator[str]:
    """Where untrusted code runs, what has to be there, and the steps in their order."""
    yield f"sandbox     {settings.sandbox.provider}, {settings.rollout.concurrency} trials at once"
    yield f"needs       {settings.machine.memory_gib:g} GiB of memory, {settings.machine.disk_gib:g} GiB of disk"
    for template in document["spec"]["templates"]:
        for task in template.get("dag", {}).get("tasks", []):
            fan_out = " (fan-out)" if "withParam" in task else ""
            yield f"step        {task['name']}{fan_out} after {task.get('depends', 'the start')}"


def _machines(settings: Settings, document: Mapping[str, Any]) -> Iterator[str]:
    """What the cluster has to have free at once for training, and the shares and images of the run's own pods."""
    cluster = settings.cluster
    head, workers = cluster.head, cluster.workers
    gpus = head.gpus + workers.replicas * workers.gpus if settings.train.device == "cuda" else 0
    pods = f"{workers.replicas} of {workers.gpus} more" if workers.replicas else "no workers"
    yield f"gpus        {gpus}: the head has {head.gpus}, with {head.cpus} CPUs and {head.memory}; {pods}"
    pods_of: dict[str, list[str]] = {}
    for template in document["spec"]["templates"]:
        if "script" in template:
            share = template["script"]["resources"]["requests"]
            pods_of.setdefault(f"{share['cpu']} CPUs, {share['memory']}", []).append(template["name"])
    for asked, steps in pods_of.items():
        yield f"pods        {asked}: {', '.join(steps)}"
    yield f"images      {cluster.steps_image} for light steps, {cluster.trainer_image} for the others and for Ray"
    yield f"            of tasks in {settings.images.shards} parts, for {settings.sandbox.provider} sandboxes"


def _sizes(settings: Settings, workspace: Path) -> Iterator[str]:
    if not _model(settings, workspace).exists():
        yield "sizes       known when the model is in this workspace"
        return
    try:
        sizes = resolve(settings.train, read_shape(_model(settings, workspace).parent))
    except SizingError as error:
        yield f"sizes       cannot run: {error}"
        return
    yield "sizes       " + ", ".join(f"{name} {value}" for name, value in sizes.model_dump().items())


def _data(settings: Settings, workspace: Path) -> Path:
    return workspace / "datasets" / settings.data.name / "manifest.json"


def _model(settings: Settings, workspace: Path) -> Path:
    return workspace / "models" / settings.model.name / "config.json"


def _there(path: Path) -> str:
    return "in this workspace already" if path.exists() else "not in this workspace"
