"""A typed view of the compiled Workflow, as far as the local runner interprets it.

Reading is checking: a field that is neither interpreted nor known to matter only in a cluster is refused by its path,
and so are template kinds, expressions and references that the runner could not resolve later. What passes here runs.

Fields that only place a pod (image, resources, volumes, service account, labels, clean-up of objects) are accepted and
have no effect on one machine; each model lists them under "of the cluster".
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from agentic.processes import WORKSPACE_VARIABLE
from workflows.errors import DocumentError
from workflows.local import expressions
from workflows.local.substitution import references


class Part(BaseModel):
    """A piece of the document: camelCase keys, unknown ones refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class ValueFrom(Part):
    """Where an output parameter is read."""

    path: str
    default: str | None = None


class Parameter(Part):
    """A named text value."""

    name: str
    value: str | None = None
    default: str | None = None
    value_from: ValueFrom | None = None
    enum: list[str] | None = None
    description: str | None = None

    @property
    def initial(self) -> str | None:
        """The value that holds unless the caller gives one."""
        return self.value if self.value is not None else self.default


class Parameters(Part):
    """Inputs, outputs or arguments; artifacts are not interpreted."""

    parameters: list[Parameter] = []


class Backoff(Part):
    """Waiting times between attempts."""

    duration: str = "0"
    factor: str | int = 1
    cap: str | None = None
    max_duration: str | None = None


class RetryStrategy(Part):
    """When and how often an attempt is repeated."""

    limit: int = 0
    retry_policy: Literal["Always", "OnFailure", "OnError"] = "OnFailure"
    expression: str | None = None
    backoff: Backoff = Backoff()
    # of the cluster
    affinity: Any = None


class EnvironmentVariable(Part):
    """A variable with a literal value; one from a Secret is this machine's own."""

    name: str
    value: str = ""
    # of the cluster
    value_from: Any = None


class VolumeMount(Part):
    """A volume's place in the container, which maps to a folder of the workspace."""

    name: str
    mount_path: str
    # of the cluster
    sub_path: str | None = None
    read_only: bool | None = None


class Container(Part):
    """A command; as `script`, with the source as its last argument."""

    command: list[str]
    args: list[str] = []
    source: str | None = None
    env: list[EnvironmentVariable] = []
    volume_mounts: list[VolumeMount] = []
    # of the cluster
    name: str | None = None
    image: str | None = None
    image_pull_policy: str | None = None
    resources: Any = None

    @property
    def container_workspace(self) -> str:
        """Where the container sees the workspace."""
        return next((variable.value for variable in self.env if variable.name == WORKSPACE_VARIABLE), "/workspace")


class Task(Part):
    """A node of a DAG."""

    name: str
    template: str
    depends: str = ""
    when: str | None = None
    arguments: Parameters = Parameters()
    with_param: str | None = None
    with_items: list[Any] | None = None


class Dag(Part):
    """Tasks and their order."""

    tasks: list[Task]
    fail_fast: bool = True
    target: str | None = None
    """Tasks that are run with all that they depend on; only a target that leaves no task out is interpreted."""

    @model_validator(mode="after")
    def _target_leaves_nothing_out(self) -> Self:
        if self.target is None:
            return self
        before = {task.name: set(re.findall(r"[A-Za-z0-9][A-Za-z0-9_-]*", task.depends)) for task in self.tasks}
        reached: set[str] = set()
        waiting = set(self.target.split())
        while waiting:
            reached |= waiting
            waiting = {name for task in waiting for name in before.get(task, ())} - reached
        left_out = [name for name in before if name not in reached]
        if left_out:
            raise ValueError(f"the target leaves out {', '.join(left_out)}")
        return self


class Template(Part):
    """A DAG or one command."""

    name: str
    dag: Dag | None = None
    script: Container | None = None
    container: Container | None = None
    inputs: Parameters = Parameters()
    outputs: Parameters = Parameters()
    retry_strategy: RetryStrategy | None = None
    active_deadline_seconds: int | None = None
    # of the cluster
    annotations: Any = None
    metadata: Any = None
    synchronization: Any = None
    volumes: Any = None
    node_selector: Any = None
    tolerations: Any = None
    service_account_name: str | None = None
    pod_spec_patch: str | None = None

    @property
    def command(self) -> Container | None:
        """What a leaf runs; `None` for a DAG."""
        return self.script or self.container


class WorkflowSpec(Part):
    """The workflow itself."""

    entrypoint: str
    templates: list[Template]
    arguments: Parameters = Parameters()
    on_exit: str | None = None
    parallelism: int | None = Field(None, gt=0)
    active_deadline_seconds: int | None = None
    # of the cluster
    service_account_name: str | None = None
    image_pull_secrets: Any = None
    pod_gc: Any = Field(None, alias="podGC")
    pod_metadata: Any = None
    pod_priority_class_name: str | None = None
    priority: int | None = None
    synchronization: Any = None
    ttl_strategy: Any = None
    volumes: Any = None
    node_selector: Any = None
    tolerations: Any = None


class Document(Part):
    """A Workflow object."""

    api_version: Literal["argoproj.io/v1alpha1"]
    kind: Literal["Workflow"]
    metadata: dict[str, Any]
    spec: WorkflowSpec

    @property
    def name(self) -> str:
        """`metadata.name`, or the prefix that a server would complete."""
        return str(self.metadata.get("name") or self.metadata.get("generateName", "workflow").rstrip("-"))

    @property
    def templates(self) -> Mapping[str, Template]:
        """Templates by name."""
        return {template.name: template for template in self.spec.templates}


def read_document(compiled: Mapping[str, Any]) -> Document:
    """The checked document, or a DocumentError that names what cannot be interpreted."""
    try:
        document = Document.model_validate(compiled)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        reason = "is not interpreted by the local runner" if first["type"] == "extra_forbidden" else first["msg"]
        raise DocumentError(f"Workflow field {path}: {reason}; submit to Argo instead, or take it out") from error
    for problem in _problems(document):
        raise DocumentError(problem)
    return document


def _problems(document: Document) -> Iterator[str]:
    known = document.templates
    for place, name in (("entrypoint", document.spec.entrypoint), ("onExit", document.spec.on_exit)):
        if name is not None and name not in known:
            yield f"spec.{place}: no template is named '{name}' (there are {', '.join(known)})"
        elif name is not None:
            yield from _argument_problems(f"spec.{place}", Parameters(), known[name])
    for template in document.spec.templates:
        kinds = [kind for kind in ("dag", "script", "container") if getattr(template, kind) is not None]
        if len(kinds) != 1:
            yield f"template {template.name}: is not exactly one of dag, script and container"
        if template.dag is not None:
            yield from _dag_problems(template, template.dag, document)
        if template.retry_strategy is not None and template.retry_strategy.expression is not None:
            expressions.Parser(template.retry_strategy.expression, expressions.RETRY).parse()
        yield from _mount_problems(template)
        interpreted = template.model_dump(exclude={"dag", "annotations"})
        yield from _reference_problems(template.name, interpreted, _scope(template, document))


def _mount_problems(template: Template) -> Iterator[str]:
    command = template.command
    if command is None:
        return
    root = command.container_workspace
    for mount in command.volume_mounts:
        if not PurePosixPath(mount.mount_path).is_relative_to(root):
            yield f"template {template.name}: volume {mount.name} lies at {mount.mount_path}, outside of {root}"


def _scope(template: Template, document: Document) -> set[str]:
    scope = {f"workflow.{field}" for field in ("name", "uid", "namespace", "status", "duration")}
    scope |= {f"workflow.parameters.{parameter.name}" for parameter in document.spec.arguments.parameters}
    scope |= {f"inputs.parameters.{parameter.name}" for parameter in template.inputs.parameters}
    return scope | {"inputs.parameters"}


def _reference_problems(place: str, part: Any, scope: set[str]) -> Iterator[str]:
    for reference in references(json.dumps(part)):
        if reference not in scope and not (reference.startswith("item.") and "item" in scope):
            yield f"{place}: {{{{{reference}}}}} refers to nothing that the local runner knows"


def _dag_problems(template: Template, dag: Dag, document: Document) -> Iterator[str]:
    if template.retry_strategy is not None or template.active_deadline_seconds is not None:
        yield f"template {template.name}: retryStrategy and activeDeadlineSeconds of a DAG are not interpreted"
    tasks = {task.name: task for task in dag.tasks}
    earlier = ancestors(dag)
    for task in dag.tasks:
        place = f"task {template.name}.{task.name}"
        target = document.templates.get(task.template)
        if target is None:
            yield f"{place}: no template is named '{task.template}'"
            continue
        if task.name in earlier[task.name]:
            yield f"{place}: depends on itself"
        if task.when is not None:
            expressions.Parser(task.when, expressions.WHEN).parse()
        yield from _argument_problems(place, task.arguments, target)
        scope = _scope(template, document)
        if task.with_param is not None or task.with_items is not None:
            scope |= {"item"}
        for name in earlier[task.name] - {task.name}:
            before = document.templates.get(tasks[name].template)
            outputs = before.outputs.parameters if before is not None else []
            scope |= {f"tasks.{name}.outputs.parameters.{output.name}" for output in outputs} | {f"tasks.{name}.status"}
        yield from _reference_problems(place, task.model_dump(), scope)


def _argument_problems(place: str, arguments: Parameters, target: Template) -> Iterator[str]:
    given = {argument.name for argument in arguments.parameters}
    wanted = {parameter.name: parameter for parameter in target.inputs.parameters}
    for name in sorted(given - set(wanted)):
        yield f"{place}: argument '{name}' is not an input of template {target.name}"
    for name, parameter in wanted.items():
        if name not in given and parameter.initial is None:
            yield f"{place}: input '{name}' of template {target.name} has no value"


def ancestors(dag: Dag) -> Mapping[str, set[str]]:
    """For each task the tasks that it waits for, directly or not (itself too when there is a cycle)."""
    names = [task.name for task in dag.tasks]
    direct = {task.name: expressions.task_names(task.depends, names) if task.depends else set() for task in dag.tasks}
    closed = {name: set(direct[name]) for name in names}
    for _ in names:
        for name in names:
            closed[name] |= set().union(*(closed[parent] for parent in closed[name]))
    return closed


def seconds_of(duration: str) -> float:
    """An Argo duration: plain seconds, or parts such as `1h30m` and `500ms`."""
    if re.fullmatch(r"\d+(\.\d+)?", duration):
        return float(duration)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise DocumentError(f"'{duration}' is not a duration such as 30s, 5m or 1h30m")
    unit_seconds = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(number) * unit_seconds[unit] for number, unit in parts)
