"""The workflow, built with Hera from the settings: the same document for Argo and for the local runner.

    preflight ─┬─► download-data ──► build-images (fan-out) ─┐
               └─► download-model ───────────────────────────┴─► launch-cluster ─► train ─► evaluate ─► report
                                                      on exit, always: cleanup

A policy that is made from tasks waits for them: download-model then comes after download-data.

Settings travel as workflow parameters, one JSON text for each section, so that the Argo UI shows them and a step can be
submitted again with others; a step is given those that its input model names. Paths of the data set and the model
follow from the settings, as do the items of the fan-out, so no step needs an output of one that `start_from` skips; the
checkpoint of `evaluate` is the exception and has a default. Dependencies are plain names: after
`argo resubmit --memoized` a success counts as skipped. Items of the fan-out read the sections from their environment,
since Argo keeps the inputs of each attempt at each item in the Workflow object.

A run may have several Workflows, one after the other: attempts at the same run folder, told apart by their number.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_type_hints

from hera.workflows import (
    DAG,
    Env,
    ExistingVolume,
    HostPathVolume,
    Parameter,
    Resources,
    RetryPolicy,
    RetryStrategy,
    RunnerScriptConstructor,
    Script,
    SecretVolume,
    Task,
    Workflow,
    script,
)
from hera.workflows.models import (
    Backoff,
    KeyToPath,
    LocalObjectReference,
    Mutex,
    PodGC,
    Synchronization,
    Toleration,
    TTLStrategy,
)

from agentic.cluster.labels import PART, PART_LABEL, RUN_LABEL, STEP_LABEL
from agentic.cluster.objects.image_build import LOGIN_FOLDER
from agentic.cluster.objects.ray_cluster import QUEUE_LABEL
from agentic.cluster.settings import ClusterSettings, StepResources, label_map, toleration_list
from agentic.sandbox.settings import KubeSandbox
from steps import (
    build_images,
    cleanup,
    download_data,
    download_model,
    evaluate,
    launch_cluster,
    preflight,
    report,
    train,
    workflow_owner,
)
from steps.contract import StepInput, from_environment
from workflows.settings import Settings, known_tasks, profile_stem

OUTPUTS_DIRECTORY = "/tmp/hera-outputs"
"""Where Hera's runner writes outputs in a pod."""

SECTIONS = ("data", "model", "images", "sandbox", "rollout", "train", "ray", "cluster", "machine")
"""Sections of the settings, each a parameter of the workflow."""

STEPS = (
    "preflight",
    "download-data",
    "download-model",
    "build-images",
    "launch-cluster",
    "train",
    "evaluate",
    "report",
)
"""Where a workflow can be told to start, in order."""

FAN_OUT = "build-images"
"""The step of many parts, which are called `build-images-0` and so on."""

EXIT_STEP = "cleanup"
"""The exit handler."""

LONGEST_NAME = 63
"""Characters of a label's value."""

ATTEMPT_LABEL = "agentic-rl/attempt"
"""Of a run's Workflows: which one."""

HEAVY = frozenset(["download-model", "build-images", "report"])
"""Steps that need the training stack's image. Those that train need it in the RayCluster's pods, where the work is
done; their own pods only follow it."""

OOM_WORTH_SECONDS = 3600
"""An attempt that ran for so long before its memory was used up has come further than the one before it."""

RETRY_WHEN = (
    "lastRetry.status == 'Error' || asInt(lastRetry.exitCode) in [64, 65, 75, 143] || "
    "lastRetry.message matches 'imminent node shutdown|pod deleted|low on resource|Evicted|[Pp]reempt|was rejected' || "
    "(asInt(lastRetry.exitCode) == 137 && !(lastRetry.message matches 'OOMKilled')) || "
    "(lastRetry.message matches 'OOMKilled' && "
    f"(asInt(retries) == 0 || asFloat(lastRetry.duration) > {OOM_WORTH_SECONDS}))"
)
"""75 is a step that says that trying again may help; 64 and 65 are Argo's executor's own; 137 and 143 are signals. The
words are kubelet's and Argo's for a pod that was lost with its node, evicted or refused by it. A container over its own
limit of memory will be again: it gets one more try, since a neighbour may have pressed, and further ones only while
each attempt gets far."""

QUEUED = frozenset(["download-model", "build-images"])
"""Steps whose pods a queue may hold back where they do heavy work. The others are small, and would wait for quota that
the run's own RayCluster holds, whose end they bring about."""

LOOKED_AT = "build-images report"
"""Target of the DAG: its last step, and the fan-out. Argo's own retry opens a fan-out again that lies before the failed
step, and its controller (4.0.5) closes one only while it looks at it, which for a target it always does."""

MOVING_SECONDS = 120
"""What a pod gets to end in good order: Ray and vLLM stop their own children within it."""


def build_workflow(
    settings: Settings, profile: str, run_id: str, start_from: str = STEPS[0], attempt: int = 1
) -> dict[str, Any]:
    """The compiled Workflow."""
    cluster = settings.cluster
    secret = cluster.image_pull_secret
    workflow = Workflow(
        name=name_of_workflow(run_id, attempt),
        namespace=cluster.namespace,
        labels=labels_of(run_id, profile, attempt),
        annotations=_description(settings, profile, run_id),
        entrypoint="main",
        on_exit="on-exit",
        service_account_name=cluster.service_account,
        image_pull_secrets=[LocalObjectReference(name=secret)] if secret else None,
        arguments=_parameters(settings, profile, run_id, start_from),
        parallelism=cluster.parallelism,
        priority=cluster.priority,
        pod_priority_class_name=cluster.priority_class,
        node_selector=label_map(cluster.node_selector) or None,
        tolerations=[Toleration(**one) for one in toleration_list(cluster.tolerations)] or None,
        synchronization=_alone(f"runs-{run_id}"),
        active_deadline_seconds=cluster.deadline_seconds,
        pod_gc=PodGC(strategy="OnPodSuccess", delete_delay_duration="600s"),
        ttl_strategy=TTLStrategy(
            seconds_after_success=cluster.keep_succeeded_seconds, seconds_after_failure=cluster.keep_failed_seconds
        ),
    )
    with workflow:
        scripts = _scripts(settings, run_id)
        with DAG(name="main", target=LOOKED_AT):
            _wire(scripts, settings)
        with DAG(name="on-exit"):
            scripts["cleanup"](name="cleanup", arguments={**given_to(cleanup), "status": "{{workflow.status}}"})
    document: dict[str, Any] = workflow.to_dict()
    _unwrap_exit_handler(document)
    _name_nodes(document)
    _spare_the_object(document, "build-images")
    return document


def name_of_workflow(run_id: str, attempt: int = 1) -> str:
    """At most 63 characters, since Argo puts it into a label of every pod; no two runs share one, however long."""
    suffix = f"-attempt-{attempt}" if attempt > 1 else ""
    whole = f"agentic-rl-{run_id}{suffix}"
    if len(whole) <= LONGEST_NAME:
        return whole
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:8]
    return f"{whole[: LONGEST_NAME - len(suffix) - 9]}-{digest}{suffix}"


def labels_of(run_id: str, profile: str, attempt: int = 1) -> dict[str, str]:
    """A profile may be any path: the nearest valid value stands for it, and a parameter has it in full."""
    value = re.sub(r"[^A-Za-z0-9_.-]+", "-", profile_stem(profile)).strip("-_.")[:63].rstrip("-_.")
    return {
        PART_LABEL: PART,
        RUN_LABEL: run_id,
        ATTEMPT_LABEL: str(attempt),
        "agentic-rl/profile": value,
    }


def _description(settings: Settings, profile: str, run_id: str) -> dict[str, str]:
    """What Argo's UI shows of a Workflow in its list and at its head."""
    train = settings.train
    return {
        "workflows.argoproj.io/title": f"{run_id}: {train.algorithm}, {settings.model.name} on {settings.data.name}",
        "workflows.argoproj.io/description": (
            f"Profile {profile}: {train.steps} steps of {train.prompts_per_step} tasks x {train.rollouts_per_prompt} "
            f"rollouts; sandboxes by {settings.sandbox.provider}."
        ),
    }


def _unwrap_exit_handler(document: Mapping[str, Any]) -> None:
    """Make the exit handler the step itself: in a Workflow that is stopped, Argo takes any DAG for failed at once, and
    would not wait for the step inside. Its inputs then have to have values of their own."""
    spec = document["spec"]
    templates = {template["name"]: template for template in spec["templates"]}
    (task,) = templates[spec["onExit"]]["dag"]["tasks"]
    given = {one["name"]: one["value"] for one in task["arguments"]["parameters"]}
    handler = templates[task["template"]]
    handler["inputs"]["parameters"] = [
        {"name": one["name"], "value": given[one["name"]]} for one in handler["inputs"]["parameters"]
    ]
    spec["templates"].remove(templates[spec["onExit"]])
    spec["onExit"] = handler["name"]


def _name_nodes(document: Mapping[str, Any]) -> None:
    """Names in Argo's UI where its own differ from those of logs and of the local run. Hera has no field for it."""
    names = {"build-images": "build-images-{{=split(inputs.parameters.shard, '/')[0]}}", "cleanup": "cleanup"}
    for template in document["spec"]["templates"]:
        if template["name"] in names:
            template["annotations"] = {"workflows.argoproj.io/display-name": names[template["name"]]}


def _spare_the_object(document: Mapping[str, Any], step: str) -> None:
    """Let a fan-out's items find the sections in their environment instead of their inputs."""
    templates = {template["name"]: template for template in document["spec"]["templates"]}
    (task,) = [task for task in templates["main"]["dag"]["tasks"] if task["name"] == step]
    template = templates[step]
    names = [parameter["name"] for parameter in template["inputs"]["parameters"]]
    sections = [name for name in names if name in SECTIONS]
    for holder in (template["inputs"], task["arguments"]):
        holder["parameters"] = [one for one in holder["parameters"] if one["name"] not in sections]
    given = {name: f"{{{{inputs.parameters.{name}}}}}" for name in names if name not in sections}
    given |= {name: from_environment(name) for name in sections}
    script = template["script"]
    script["source"] = json.dumps([{"name": name, "value": value} for name, value in given.items()])
    script["env"] += [
        {"name": from_environment(name)[1:], "value": f"{{{{workflow.parameters.{name}}}}}"} for name in sections
    ]


def _alone(folder: str) -> Synchronization:
    """A mutex of the namespace: one at a time writes the folder. The steps' own locks hold only where storage has
    them, and wait within a pod; this waits before one is made, and says so in the UI."""
    return Synchronization(mutexes=[Mutex(name=folder)])


def _parameters(settings: Settings, profile: str, run_id: str, start_from: str) -> list[Parameter]:
    sections = {
        name: json.dumps(getattr(settings, name).model_dump(mode="json"), separators=(", ", ": ")) for name in SECTIONS
    }
    return [
        Parameter(name="run_id", value=run_id),
        Parameter(name="profile", value=profile),
        Parameter(name="start_from", value=start_from, enum=list(STEPS)),
        *(Parameter(name=name, value=value) for name, value in sections.items()),
    ]


@dataclass(frozen=True)
class Size:
    """What a step's pod asks for, and how long one attempt may take."""

    share: StepResources
    deadline_seconds: int


def _scripts(settings: Settings, run_id: str) -> Mapping[str, Script]:
    """One template for each step, the exit handler included."""
    cluster = settings.cluster
    light = Size(cluster.light, cluster.step_deadline_seconds)
    heavy = Size(cluster.heavy, cluster.step_deadline_seconds)
    training = Size(cluster.light, cluster.train_deadline_seconds)
    sizes = {
        preflight: light,
        download_data: light,
        download_model: heavy,
        build_images: heavy if "build-images" in _heavy(settings) else light,
        launch_cluster: light,
        train: training,
        evaluate: training,
        report: light,
        cleanup: light,
    }
    return {name_of(module): _script(module, settings, run_id, size) for module, size in sizes.items()}


def name_of(module: ModuleType) -> str:
    """`steps.download_data` -> `download-data`."""
    return module.__name__.rpartition(".")[2].replace("_", "-")


def _script(module: ModuleType, settings: Settings, run_id: str, size: Size) -> Script:
    name, cluster = name_of(module), settings.cluster
    folders = {"download-data": f"datasets-{settings.data.name}", "download-model": f"models-{settings.model.name}"}
    logins = _login_volumes(settings) if module is build_images else []
    made: Script = script(
        name=name,
        image=cluster.trainer_image if name in _heavy(settings) else cluster.steps_image,
        constructor=RunnerScriptConstructor(outputs_directory=OUTPUTS_DIRECTORY),
        env=[*_environment(cluster, run_id), *([Env(name="DOCKER_CONFIG", value=LOGIN_FOLDER)] if logins else [])],
        volumes=[*_volumes(cluster), *logins],
        resources=Resources(
            cpu_request=size.share.cpu,
            cpu_limit=size.share.cpu,
            memory_request=size.share.memory,
            memory_limit=size.share.memory,
        ),
        retry_strategy=_retries(cluster),
        synchronization=_alone(folders[name]) if name in folders else None,
        active_deadline_seconds=size.deadline_seconds,
        pod_spec_patch=json.dumps({"terminationGracePeriodSeconds": MOVING_SECONDS}),
        labels=_pod_labels(name, settings, run_id),
    )(module.run)
    return made


def _pod_labels(name: str, settings: Settings, run_id: str) -> dict[str, str]:
    labels = {PART_LABEL: PART, RUN_LABEL: run_id, STEP_LABEL: name}
    queue = settings.cluster.queue
    if queue is not None and name in QUEUED & _heavy(settings):
        labels[QUEUE_LABEL] = queue
    return labels


def _volumes(cluster: ClusterSettings) -> list[ExistingVolume | HostPathVolume]:
    root = cluster.workspace_path
    return [
        ExistingVolume(name="runs", claim_name=cluster.runs.claim, mount_path=root),
        ExistingVolume(name="models", claim_name=cluster.models.claim, mount_path=f"{root}/models"),
        ExistingVolume(name="datasets", claim_name=cluster.datasets.claim, mount_path=f"{root}/datasets"),
        *(
            HostPathVolume(name=f"host-{index}", path=mount.host_path, mount_path=mount.mount_path, read_only=True)
            for index, mount in enumerate(cluster.mounts)
        ),
    ]


def _heavy(settings: Settings) -> frozenset[str]:
    """For sandboxes that are pods, build-images only asks: the work is BuildKit's."""
    return HEAVY - {"build-images"} if isinstance(settings.sandbox, KubeSandbox) else HEAVY


def _login_volumes(settings: Settings) -> list[SecretVolume]:
    """What registries want to know of who asks them for images."""
    secret = settings.images.registry.secret or settings.cluster.image_pull_secret
    if secret is None:
        return []
    items = [KeyToPath(key=".dockerconfigjson", path="config.json")]
    return [SecretVolume(name="login", secret_name=secret, items=items, optional=True, mount_path=LOGIN_FOLDER)]


def _environment(cluster: ClusterSettings, run_id: str) -> list[Env]:
    variables = {
        "AGENTIC_WORKSPACE": cluster.workspace_path,
        "AGENTIC_TARGET": "argo",
        "AGENTIC_RUN_ID": run_id,
        workflow_owner.NAME: "{{workflow.name}}",
        workflow_owner.UID: "{{workflow.uid}}",
        workflow_owner.NAMESPACE: "{{workflow.namespace}}",
    }
    return [Env(name=name, value=value) for name, value in variables.items()]


def _retries(cluster: ClusterSettings) -> RetryStrategy:
    return RetryStrategy(
        limit=str(cluster.retries),
        retry_policy=RetryPolicy.always,
        expression=RETRY_WHEN,
        backoff=Backoff(duration=f"{cluster.retry_seconds}s", factor="2", cap="10m"),
    )


def _wire(scripts: Mapping[str, Script], settings: Settings) -> None:
    """The DAG. Every input is given by name: Hera would fill a forgotten one of a fan-out with a field of its item."""
    data_dir = f"datasets/{settings.data.name}"
    model_dir = f"models/{settings.model.name}"

    def add(module: ModuleType, *, after: Sequence[Task] = (), **more: Any) -> Task:
        step = name_of(module)
        arguments = given_to(module) | more.pop("arguments", {})
        task: Task = scripts[step](name=step, arguments=arguments, when=runs_from(step), **more)
        for before in after:
            before >> task
        return task

    first = add(preflight)
    data = add(download_data, after=[first])
    needs_tasks = settings.model.source == "tiny"
    model = add(download_model, after=[data if needs_tasks else first], arguments={"data_dir": data_dir})
    images = add(
        build_images,
        after=[data],
        arguments={"data_dir": data_dir, "shard": "{{item}}"},
        with_items=_shards(settings),
    )
    launched = add(launch_cluster, after=[images, model])
    job = {"model_dir": model_dir, "data_dir": data_dir}
    trained = add(train, after=[launched], arguments=job)
    checkpoint = {"checkpoint": trained.get_parameter("checkpoint").value}
    evaluated = add(evaluate, after=[trained], arguments=job | checkpoint)
    add(report, after=[evaluated])


def _shards(settings: Settings) -> list[str]:
    """`0/4`, `1/4`, ...: no more parts than there are tasks, as far as that is known; an empty one is soon done."""
    count = min(settings.images.shards, known_tasks(settings.data) or settings.images.shards)
    return [f"{index}/{count}" for index in range(count)]


def given_to(module: ModuleType) -> dict[str, str]:
    """The workflow's parameters that the step's input model has a field for."""
    inputs: type[StepInput] = get_type_hints(module.run)["inputs"]
    wanted = [name for name in inputs.model_fields if name in ("run_id", "profile", *SECTIONS)]
    return {name: f"{{{{workflow.parameters.{name}}}}}" for name in wanted}


def runs_from(step: str) -> str | None:
    """The `when` of a step: it runs unless the workflow starts at a later one."""
    later = STEPS[STEPS.index(step) + 1 :]
    return " && ".join(f"'{{{{workflow.parameters.start_from}}}}' != '{other}'" for other in later) or None
