"""The workflow, built with Hera from the settings: the same document for Argo and for the local runner.

    preflight ─┬─► download-data ──► build-images (fan-out) ─┐
               └─► download-model ───────────────────────────┴─► launch-cluster ─► train ─► evaluate ─► report
                                                      on exit, always: cleanup

A policy that is made from tasks waits for them: download-model then comes after download-data.

Settings travel as workflow parameters, one JSON text for each section, so that the Argo UI shows them and a step can be
submitted again with others. Paths of the data set and the model follow from the settings, so no step needs an output of
one that `start_from` skips; the fan-out's items and `evaluate`'s checkpoint are the exceptions and have defaults or are
skipped along. Dependencies are plain names: after `argo resubmit --memoized` a success counts as skipped.
"""

import json
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

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
    Task,
    Workflow,
    script,
)
from hera.workflows.models import Backoff, LocalObjectReference, PodGC, TTLStrategy

from agentic.cluster.settings import ClusterSettings, StepResources
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
from workflows.settings import Settings, profile_stem

OUTPUTS_DIRECTORY = "/tmp/hera-outputs"
"""Where Hera's runner writes outputs in a pod."""

SECTIONS = ("data", "model", "images", "sandbox", "rollout", "train", "ray", "machine")
"""Sections that steps are given."""

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

HEAVY = frozenset(["download-model", "build-images", "launch-cluster", "train", "evaluate", "report"])
"""Steps that need the training stack's image."""

RETRY_WHEN = (
    "lastRetry.status == 'Error' || asInt(lastRetry.exitCode) in [64, 65, 75, 137, 143] || "
    "lastRetry.message matches 'imminent node shutdown|pod deleted|Evicted|OOMKilled|preempt'"
)
"""75 is a step that says that trying again may help; 64 and 65 are Argo's executor's own; 137 and 143 are signals."""

MOVING_SECONDS = 120
"""What a pod gets to end in good order: Ray and vLLM stop their own children within it."""


def build_workflow(settings: Settings, profile: str, run_id: str, start_from: str = STEPS[0]) -> dict[str, Any]:
    """The compiled Workflow."""
    cluster = settings.cluster
    secret = cluster.image_pull_secret
    workflow = Workflow(
        name=f"agentic-rl-{run_id}",
        namespace=cluster.namespace,
        labels=labels_of(run_id, profile),
        entrypoint="main",
        on_exit="on-exit",
        service_account_name=cluster.service_account,
        image_pull_secrets=[LocalObjectReference(name=secret)] if secret else None,
        arguments=_parameters(settings, profile, run_id, start_from),
        parallelism=cluster.parallelism,
        active_deadline_seconds=cluster.deadline_seconds,
        pod_gc=PodGC(strategy="OnPodSuccess", delete_delay_duration="600s"),
        ttl_strategy=TTLStrategy(
            seconds_after_success=cluster.keep_succeeded_seconds, seconds_after_failure=cluster.keep_failed_seconds
        ),
    )
    with workflow:
        scripts = _scripts(settings, run_id)
        with DAG(name="main"):
            _wire(scripts, settings)
        with DAG(name="on-exit"):
            given = {name: f"{{{{workflow.parameters.{name}}}}}" for name in ("run_id", "sandbox")}
            scripts["cleanup"](name="cleanup", arguments={**given, "status": "{{workflow.status}}"})
    document: dict[str, Any] = workflow.to_dict()
    return document


def labels_of(run_id: str, profile: str) -> dict[str, str]:
    """A profile may be any path: the nearest valid value stands for it, and a parameter has it in full."""
    value = re.sub(r"[^A-Za-z0-9_.-]+", "-", profile_stem(profile)).strip("-_.")[:63].rstrip("-_.")
    return {"app.kubernetes.io/part-of": "agentic-rl", "agentic-rl/run": run_id, "agentic-rl/profile": value}


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


def _scripts(settings: Settings, run_id: str) -> Mapping[str, Script]:
    """One template for each step, the exit handler included."""
    cluster = settings.cluster
    head = StepResources(cpu=str(cluster.head.cpus), memory=cluster.head.memory)
    gpus = cluster.head.gpus if settings.train.device == "cuda" else 0
    long = cluster.train_deadline_seconds
    sizes: Mapping[ModuleType, tuple[StepResources, int, int]] = {
        preflight: (cluster.light, 0, cluster.step_deadline_seconds),
        download_data: (cluster.light, 0, cluster.step_deadline_seconds),
        download_model: (cluster.heavy, 0, cluster.step_deadline_seconds),
        build_images: (cluster.heavy, 0, cluster.step_deadline_seconds),
        launch_cluster: (cluster.light, 0, cluster.step_deadline_seconds),
        train: (head, gpus, long),
        evaluate: (head, gpus, long),
        report: (cluster.light, 0, cluster.step_deadline_seconds),
        cleanup: (cluster.light, 0, cluster.step_deadline_seconds),
    }
    return {name_of(module): _script(module, cluster, run_id, *size) for module, size in sizes.items()}


def name_of(module: ModuleType) -> str:
    """`steps.download_data` -> `download-data`."""
    return module.__name__.rpartition(".")[2].replace("_", "-")


def _script(
    module: ModuleType, cluster: ClusterSettings, run_id: str, size: StepResources, gpus: int, deadline_seconds: int
) -> Script:
    name = name_of(module)
    root = cluster.workspace_path
    volumes = [
        ExistingVolume(name="runs", claim_name=cluster.runs.claim, mount_path=root),
        ExistingVolume(name="models", claim_name=cluster.models.claim, mount_path=f"{root}/models"),
        ExistingVolume(name="datasets", claim_name=cluster.datasets.claim, mount_path=f"{root}/datasets"),
        *(
            HostPathVolume(name=f"host-{index}", path=mount.host_path, mount_path=mount.mount_path, read_only=True)
            for index, mount in enumerate(cluster.mounts)
        ),
    ]
    environment = {
        "AGENTIC_WORKSPACE": root,
        "AGENTIC_TARGET": "argo",
        "AGENTIC_RUN_ID": run_id,
        workflow_owner.NAME: "{{workflow.name}}",
        workflow_owner.UID: "{{workflow.uid}}",
        workflow_owner.NAMESPACE: "{{workflow.namespace}}",
    }
    made: Script = script(
        name=name,
        image=cluster.trainer_image if name in HEAVY else cluster.steps_image,
        constructor=RunnerScriptConstructor(outputs_directory=OUTPUTS_DIRECTORY),
        env=[Env(name=key, value=value) for key, value in environment.items()],
        volumes=volumes,
        resources=Resources(
            cpu_request=size.cpu,
            cpu_limit=size.cpu,
            memory_request=size.memory,
            memory_limit=size.memory,
            gpus=gpus or None,
        ),
        retry_strategy=_retries(cluster),
        active_deadline_seconds=deadline_seconds,
        pod_spec_patch=json.dumps({"terminationGracePeriodSeconds": MOVING_SECONDS}),
        labels={
            "app.kubernetes.io/part-of": "agentic-rl",
            "agentic-rl/run": run_id,
            "agentic-rl/step": name,
            **({"agentic-rl/role": "trainer"} if module in (train, evaluate) else {}),
        },
    )(module.run)
    return made


def _retries(cluster: ClusterSettings) -> RetryStrategy:
    return RetryStrategy(
        limit=str(cluster.retries),
        retry_policy=RetryPolicy.always,
        expression=RETRY_WHEN,
        backoff=Backoff(duration=f"{cluster.retry_seconds}s", factor="2", cap="10m"),
    )


def _wire(scripts: Mapping[str, Script], settings: Settings) -> None:
    """The DAG. Every input is given by name: Hera would fill a forgotten one of a fan-out with a field of its item."""
    given = {name: f"{{{{workflow.parameters.{name}}}}}" for name in ("run_id", "profile", *SECTIONS)}
    data_dir = f"datasets/{settings.data.name}"
    model_dir = f"models/{settings.model.name}"

    def add(step: str, inputs: Sequence[str] = (), *, after: Sequence[Task] = (), **more: Any) -> Task:
        arguments = {name: given[name] for name in ("run_id", *inputs)} | more.pop("arguments", {})
        task: Task = scripts[step](name=step, arguments=arguments, when=runs_from(step), **more)
        for before in after:
            before >> task
        return task

    first = add("preflight", ["profile", *SECTIONS])
    data = add("download-data", ["data"], after=[first], arguments={"shards": settings.images.shards})
    needs_tasks = settings.model.source == "tiny"
    model = add("download-model", ["model"], after=[data if needs_tasks else first], arguments={"data_dir": data_dir})
    images = add(
        "build-images",
        ["images", "sandbox"],
        after=[data],
        arguments={"data_dir": data_dir, "shard": "{{item}}"},
        with_param=data.get_parameter("shards"),
    )
    launched = add("launch-cluster", ["ray", "train"], after=[images, model])
    job = {"model_dir": model_dir, "data_dir": data_dir}
    sections = ["train", "ray", "rollout", "sandbox"]
    trained = add("train", sections, after=[launched], arguments=job)
    checkpoint = {"checkpoint": trained.get_parameter("checkpoint").value}
    evaluated = add("evaluate", sections, after=[trained], arguments=job | checkpoint)
    add("report", after=[evaluated])


def runs_from(step: str) -> str | None:
    """The `when` of a step: it runs unless the workflow starts at a later one."""
    later = STEPS[STEPS.index(step) + 1 :]
    return " && ".join(f"'{{{{workflow.parameters.start_from}}}}' != '{other}'" for other in later) or None
