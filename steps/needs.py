"""What a run needs of a cluster, as the doctor compares it: settings of several rooms turned into names and numbers.

The doctor itself (`agentic.cluster.doctor`) knows nothing of models, sandboxes or training; `facts_of` does, and says
it in pods, bytes and addresses. Where a number has to be guessed, the guess is written down with its reason.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from agentic.cluster.client import KubeClient
from agentic.cluster.doctor import Facts, ImageUse, PodNeed, Target
from agentic.cluster.quantities import quantity
from agentic.cluster.resources import RAY_CLUSTERS, WORKFLOWS, JsonObject, Resource
from agentic.cluster.settings import ClusterSettings, StepResources, label_map, toleration_list
from agentic.images.settings import ImageSettings
from agentic.models.settings import HuggingFaceModel, ModelScopeModel, ModelSettings
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import MIB, KubeSandbox, SandboxSettings
from agentic.tasks.settings import DataSettings, SweBenchData
from agentic.training.errors import SizingError
from agentic.training.settings import TrainSettings
from agentic.training.sizing import ENGINE_BYTES_PER_PARAMETER, read_shape

CHECKPOINT_BYTES_PER_PARAMETER = 14
"""verl saves float32 weights and AdamW's two moments (12), and a copy in bfloat16 for engines (2)."""
IN_A_NAME = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)B(?![a-z])", re.IGNORECASE)
"""`7B` in `Qwen2.5-7B-Instruct`."""


class Sections(Protocol):
    """The settings of a run, or of as much of it as preflight is given."""

    @property
    def cluster(self) -> ClusterSettings: ...
    @property
    def data(self) -> DataSettings: ...
    @property
    def model(self) -> ModelSettings: ...
    @property
    def images(self) -> ImageSettings: ...
    @property
    def sandbox(self) -> SandboxSettings: ...
    @property
    def rollout(self) -> RolloutSettings: ...
    @property
    def train(self) -> TrainSettings: ...


def facts_of(settings: Sections, rules: list[JsonObject], kinds: tuple[Resource, ...], models: Path | None) -> Facts:
    """`rules` are what the asking account has to be allowed, `kinds` what sandboxes need; `models` is the folder of
    models, where there is one to look into."""
    return Facts(
        cluster=settings.cluster,
        rules=rules,
        kinds=(WORKFLOWS, RAY_CLUSTERS, *kinds),
        images=tuple(_images(settings)),
        pods=tuple(_pods(settings)),
        volume_bytes=volume_bytes(settings, models),
        targets=tuple(targets(settings)),
        builds_in_namespace=isinstance(settings.sandbox, KubeSandbox)
        and settings.images.builder == "jobs"
        and settings.images.buildkit_address is None,
    )


def sandbox_kinds(sandbox: SandboxSettings, client: KubeClient) -> tuple[Resource, ...]:
    """The kinds that the provider's controller has to bring."""
    from agentic.sandbox.providers import make_source
    from agentic.sandbox.settings import AgentSandbox, KruiseSandbox

    return make_source(sandbox, client).kinds if isinstance(sandbox, KruiseSandbox | AgentSandbox) else ()


def _images(settings: Sections) -> Iterator[ImageUse]:
    cluster, sandbox = settings.cluster, settings.sandbox
    secrets = (cluster.image_pull_secret,) if cluster.image_pull_secret else ()
    yield ImageUse(cluster.steps_image, "cluster.steps_image", secrets)
    yield ImageUse(cluster.trainer_image, "cluster.trainer_image", secrets)
    images = settings.images
    if images.builder_image is not None:
        yield ImageUse(images.builder_image, "images.builder_image", secrets)
    if not isinstance(sandbox, KubeSandbox):
        return
    where = sandbox.namespace
    yield ImageUse(sandbox.base_image, "sandbox.base_image", sandbox.image_pull_secrets, where)
    if sandbox.exec_server_image is not None:
        yield ImageUse(sandbox.exec_server_image, "sandbox.exec_server_image", sandbox.image_pull_secrets, where)
    if sandbox.registry is not None and sandbox.image_pattern is not None:
        task = sandbox.image_pattern.format(registry=sandbox.registry, instance_id="x", task="x", environment="0")
        yield ImageUse(task, "an image by sandbox.image_pattern", sandbox.image_pull_secrets, where)
        push = images.registry.secret
        if images.builder != "none" and push is not None:
            yield ImageUse(task, "what is pushed by images.registry.secret", (push,))


def _pods(settings: Sections) -> Iterator[PodNeed]:
    cluster, sandbox, has_gpus = settings.cluster, settings.sandbox, settings.train.device == "cuda"
    selector = label_map((*cluster.node_selector, *cluster.ray_node_selector))
    tolerations = (*toleration_list(cluster.tolerations), *toleration_list(cluster.ray_tolerations))
    head, workers = cluster.head, cluster.workers
    yield PodNeed(
        "the RayCluster's head",
        "cluster.head",
        Decimal(str(head.cpus)),
        quantity(head.memory),
        head.gpus if has_gpus else 0,
        selector=selector,
        tolerations=tolerations,
    )
    if workers.replicas:
        yield PodNeed(
            "the RayCluster's workers",
            "cluster.workers",
            Decimal(str(workers.cpus)),
            quantity(workers.memory),
            workers.gpus if has_gpus else 0,
            workers.replicas,
            selector,
            tolerations,
        )
    yield _step("a light step", "cluster.light", cluster.light, cluster)
    yield _step("download-model", "cluster.heavy", cluster.heavy, cluster)
    if isinstance(sandbox, KubeSandbox):
        yield PodNeed(
            "sandboxes",
            "sandbox",
            Decimal(str(sandbox.request_cpus)),
            Decimal(sandbox.request_memory_mb * MIB),
            count=settings.rollout.concurrency,
            namespace=sandbox.namespace,
            selector=label_map(sandbox.node_selector),
            tolerations=toleration_list(sandbox.tolerations),
        )


def _step(name: str, setting: str, share: StepResources, cluster: ClusterSettings) -> PodNeed:
    return PodNeed(
        name,
        setting,
        quantity(share.cpu),
        quantity(share.memory),
        selector=label_map(cluster.node_selector),
        tolerations=toleration_list(cluster.tolerations),
    )


def volume_bytes(settings: Sections, models: Path | None) -> Mapping[str, float]:
    """What a run keeps in each claim, as far as the model's size is known."""
    parameters = count_parameters(settings.model, models)
    if parameters is None:
        return {}
    train = settings.train
    saved = -(-train.steps // train.save_every)
    # verl writes the next one before it removes the oldest.
    kept = saved if train.keep_checkpoints is None else min(saved, train.keep_checkpoints + 1)
    return {
        "models": parameters * ENGINE_BYTES_PER_PARAMETER,
        "runs": parameters * CHECKPOINT_BYTES_PER_PARAMETER * kept,
    }


def count_parameters(model: ModelSettings, models: Path | None) -> float | None:
    """From the model's configuration where it is, else from its name; None when neither says."""
    if models is not None:
        try:
            return float(read_shape(models / model.name).parameters)
        except SizingError:
            pass
    found = IN_A_NAME.search(getattr(model, "id", model.name))
    return float(found.group(1)) * 1e9 if found else None


def targets(settings: Sections) -> Iterator[Target]:
    """What pods of the run have to reach outside of the namespace."""
    hub = hub_of(settings.model)
    if hub is not None:
        yield Target("no-egress", "the hub of models", "http", hub)
    data, images, sandbox = settings.data, settings.images, settings.sandbox
    if isinstance(data, SweBenchData) and data.command[0] == "harbor":
        yield Target("no-egress", "GitHub, where Harbor's data sets lie", "http", "https://github.com")
    if images.builder != "none" and isinstance(sandbox, KubeSandbox) and sandbox.image_pattern is not None:
        yield Target("package-index-unreachable", "the package index", "pip", "pip")
    builder = images.buildkit_address or ""
    # Other ways to BuildKit (unix, docker-container, kube-pod) are none that a pod could try.
    if builder.startswith("tcp://"):
        yield Target("builder-unreachable", "BuildKit", "tcp", builder.removeprefix("tcp://"))


def hub_of(model: ModelSettings) -> str | None:
    """The hub's address; its client knows the default one."""
    match model:
        case ModelScopeModel():
            return model.endpoint or "https://www.modelscope.cn"
        case HuggingFaceModel():
            return model.endpoint or "https://huggingface.co"
        case _:
            return None
