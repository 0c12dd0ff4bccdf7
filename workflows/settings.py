"""The one model of all settings, and how its layers are put together.

defaults < profile (YAML) < environment (`AGENTIC__SECTION__KEY`) < command line (`section.key=value`)

Each layer may name only keys that exist; an unknown one is an error that names the nearest key, wherever it came from.
A layer that changes which alternative a section is (`data.source`, `sandbox.provider`, `rollout.agent.kind`) starts
that section afresh: keys of the other alternative do not leak into it. Secrets are never values here, only names.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, get_args

import yaml
from pydantic import BaseModel, ValidationError, model_validator

from agentic import settings as base
from agentic.cluster.settings import ClusterSettings, MachineSettings
from agentic.images.settings import ImageSettings
from agentic.models.settings import ModelScopeModel, ModelSettings
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import BubblewrapSandbox, ContainerSandbox, KubeSandbox, SandboxSettings
from agentic.tasks.settings import DataSettings, FolderData, MathData, MutationData, RowsData, SweBenchData
from agentic.training.settings import RaySettings, TrainSettings
from workflows import profile_yaml
from workflows.errors import SettingsError
from workflows.targets.settings import SkyPilotSettings, SlurmSettings

PROFILES = Path(__file__).with_name("profiles")
"""One YAML file for each profile."""

DEFAULT_PROFILE = "swe-qwen2.5-7b"

PREFIX = "AGENTIC__"
"""Of environment variables that are settings."""

ALIASES = {"REMOTE_AGENT_USE_LOCAL_TRIAL": ("rollout", "use_local_trial")}
"""Environment variables under names of their own that are settings as well."""

SELECTORS = ("source", "provider", "kind")
"""Keys that pick an alternative of a section."""


class Settings(base.Settings):
    """Everything that describes a run, one section for each room."""

    data: DataSettings = SweBenchData()
    """The tasks and their split."""

    model: ModelSettings = ModelScopeModel()
    """The policy that training starts from."""

    images: ImageSettings = ImageSettings()
    """The environments of the tasks."""

    sandbox: SandboxSettings = BubblewrapSandbox()
    """Where untrusted code runs."""

    rollout: RolloutSettings = RolloutSettings()
    """The agent, its clock, the reward and the proxy."""

    train: TrainSettings = TrainSettings()
    """Algorithm, batch, lengths and the schedule of validation and checkpoints."""

    ray: RaySettings = RaySettings()
    """The Ray cluster of one machine."""

    cluster: ClusterSettings = ClusterSettings()
    """The workflow's pods: names, claims, images, shares, deadlines, retries."""

    machine: MachineSettings = MachineSettings()
    """What has to be there before anything is downloaded."""

    slurm: SlurmSettings = SlurmSettings()
    """The batch job of `--target slurm`. No step reads it."""

    skypilot: SkyPilotSettings = SkyPilotSettings()
    """The task of `--target skypilot`. No step reads it."""

    @model_validator(mode="after")
    def _shards_have_tasks(self) -> Self:
        tasks = known_tasks(self.data)
        if tasks is not None and self.images.shards > tasks:
            raise ValueError(f"images.shards is {self.images.shards} but there are {tasks} tasks: lower it to {tasks}")
        return self

    @model_validator(mode="after")
    def _agent_fits_the_context(self) -> Self:
        tokens = getattr(self.rollout.agent, "max_tokens", None)
        if tokens is not None and tokens > self.train.max_response_tokens:
            raise ValueError(
                f"rollout.agent.max_tokens is {tokens} but train.max_response_tokens is "
                f"{self.train.max_response_tokens}: one reply would not fit, lower the first or raise the second"
            )
        return self

    @model_validator(mode="after")
    def _verls_loops_have_answers(self) -> Self:
        if self.train.agent_loop != "remote_agent" and not isinstance(self.data, MathData):
            raise ValueError(
                f"train.agent_loop is {self.train.agent_loop} but data.source is {self.data.source}, whose rows hold "
                "no answer to grade by: set data.source=math, or train.agent_loop=remote_agent"
            )
        return self

    @model_validator(mode="after")
    def _calls_outlive_their_code(self) -> Self:
        tools = self.train.tools
        if tools.call_seconds <= tools.code.run_seconds:
            raise ValueError(
                f"train.tools.call_seconds is {tools.call_seconds:g} but train.tools.code.run_seconds is "
                f"{tools.code.run_seconds:g}: code that uses its time would count as a tool that hangs, raise the first"
            )
        return self

    @model_validator(mode="after")
    def _lease_outlives_a_trial(self) -> Self:
        if isinstance(self.sandbox, ContainerSandbox | KubeSandbox):
            needed = self.rollout.deadline_seconds
            if self.sandbox.lease_seconds <= needed:
                raise ValueError(
                    f"sandbox.lease_seconds is {self.sandbox.lease_seconds} but rollout and grading may take "
                    f"rollout.deadline_seconds ({needed:g}): raise the lease or lower the deadline"
                )
        return self

    @model_validator(mode="after")
    def _agents_in_pods_reach_the_proxy(self) -> Self:
        if isinstance(self.sandbox, KubeSandbox) and self.rollout.agent.runs_inside and self.sandbox.proxy_port is None:
            raise ValueError(
                f"rollout.agent.kind is {self.rollout.agent.kind}, which works inside the sandbox, but "
                "sandbox.proxy_port opens no way to the proxy: set it, or choose an agent outside such as shell"
            )
        return self

    @model_validator(mode="after")
    def _checkpoints_meet_validations(self) -> Self:
        every, saved, steps = self.train.validate_every, self.train.save_every, self.train.steps
        if every <= steps and saved <= steps and saved % every and every % saved:
            raise ValueError(
                f"train.save_every is {saved} and train.validate_every is {every}: make one a multiple of the other, "
                "or the best validation has no checkpoint"
            )
        return self

    @model_validator(mode="after")
    def _head_has_the_gpus(self) -> Self:
        if self.train.device == "cuda" and self.cluster.head.gpus != self.train.gpus_per_node:
            raise ValueError(
                f"cluster.head.gpus is {self.cluster.head.gpus} but train.gpus_per_node is {self.train.gpus_per_node}: "
                "set both to the number of GPUs of one machine"
            )
        return self

    @model_validator(mode="after")
    def _workers_make_the_nodes(self) -> Self:
        workers, train = self.cluster.workers, self.train
        if workers.replicas != train.nodes - 1:
            raise ValueError(
                f"train.nodes is {train.nodes} but the RayCluster has {1 + workers.replicas} pods: set "
                f"cluster.workers.replicas to {train.nodes - 1}, or train.nodes to {1 + workers.replicas}"
            )
        if workers.replicas and train.device == "cuda" and workers.gpus != train.gpus_per_node:
            raise ValueError(
                f"cluster.workers.gpus is {workers.gpus} but train.gpus_per_node is {train.gpus_per_node}: set both to "
                "the number of GPUs of one machine"
            )
        return self

    @model_validator(mode="after")
    def _both_sides_have_certificates(self) -> Self:
        server, client = self.cluster.buildkit.server_secret, self.images.buildkit_tls_secret
        if self.images.buildkit_address is None and (server is None) != (client is None):
            raise ValueError(
                f"cluster.buildkit.server_secret is {server} but images.buildkit_tls_secret is {client}: name the "
                "Secrets of both sides, or neither"
            )
        return self


def known_tasks(data: DataSettings) -> int | None:
    """How many tasks the data set will have, when its settings say so."""
    match data:
        case MutationData():
            return data.train + data.same_template + data.new_template
        case SweBenchData():
            return data.tasks
        case MathData() if data.origin == "generated":
            return data.train + data.validation + data.test
        case FolderData() | RowsData() | MathData():
            return None


def load_settings(profile: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Put the layers together; every problem is a SettingsError of one line."""
    return _combine(read_profile(profile), _from_environment(environment), _from_arguments(arguments))


def amend(recorded: Mapping[str, Any], arguments: Sequence[str]) -> Settings:
    """The settings of an earlier run with some of them changed; every problem is a SettingsError of one line."""
    return _combine(recorded, _from_arguments(arguments))


def _combine(*layers: Mapping[str, Any]) -> Settings:
    merged: dict[str, Any] = Settings().model_dump(mode="json")
    for layer in layers:
        merged = _merge(merged, layer)
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsError(_describe(error, merged)) from error


def profile_names() -> list[str]:
    """The profiles that ship."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def profile_stem(name: str) -> str:
    """A profile's name without folder and ending: `./mine/small.yaml` -> `small`, `swe-qwen2.5-7b` as it is."""
    return re.sub(r"\.ya?ml$", "", name.rpartition("/")[2])


def read_profile(name: str) -> dict[str, Any]:
    """A shipped profile by name, or a YAML file by path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"
    try:
        content = profile_yaml.load(path.read_text())
    except FileNotFoundError as error:
        raise SettingsError(
            f"no profile {name}: there are {', '.join(profile_names())}, and any path that ends in .yaml"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"profile {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"profile {path} holds no sections")
    return content


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    layer: dict[str, Any] = {}
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIX):
            _put(layer, name.removeprefix(PREFIX).lower().split("__"), value, f"environment variable {name}")
    for name, path in ALIASES.items():
        if name in environment:
            _put(layer, path, environment[name], f"environment variable {name}")
    return layer


def _from_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    layer: dict[str, Any] = {}
    for argument in arguments:
        path, separator, value = argument.removeprefix("--").partition("=")
        if not separator or not path:
            raise SettingsError(f"'{argument}' is no setting: write section.key=value, such as train.steps=4")
        _put(layer, path.replace("-", "_").split("."), value, f"argument {argument}")
    return layer


def _put(layer: dict[str, Any], path: Sequence[str], text: str, origin: str) -> None:
    for part in path[:-1]:
        layer = layer.setdefault(part, {})
        if not isinstance(layer, dict):
            raise SettingsError(f"{origin}: {'.'.join(path)} is given as a whole as well")
    layer[path[-1]] = _value(text, origin)


def _value(text: str, origin: str) -> Any:
    """Lists, objects, quoted strings and null are JSON; anything else is text, which the field's type reads."""
    if text == "null" or text[:1] in ("[", "{", '"'):
        try:
            return json.loads(text)
        except ValueError as error:
            raise SettingsError(f"{origin}: the value is not JSON ({error})") from error
    return text


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    if any(key in upper and upper[key] != lower.get(key) for key in SELECTORS if key in lower):
        lower = {}
    merged = dict(lower)
    for key, value in upper.items():
        before = merged.get(key)
        merged[key] = _merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def _describe(error: ValidationError, merged: Mapping[str, Any]) -> str:
    """The first finding in our words: pydantic's place also holds the tags of unions, the user's key does not."""
    first = error.errors(include_url=False)[0]
    path = _user_path(first["loc"], merged)
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "extra_forbidden":
            nearest = difflib.get_close_matches(path, list(setting_names(Settings)), n=1, cutoff=0.0)[0]
            return f"unknown setting {path}: did you mean {nearest}?"
        case "value_error":
            return message
        case "union_tag_invalid":
            context = first["ctx"]
            selector = context["discriminator"].strip("'")
            return f"{path}.{selector} is '{context['tag']}': use one of {context['expected_tags']}"
    return f"{path} is {json.dumps(first['input'], default=str)[:80]}: {message[:1].lower()}{message[1:]}"


def _user_path(location: Sequence[int | str], merged: Mapping[str, Any]) -> str:
    parts: list[str] = []
    place: Any = merged
    for part in location:
        if isinstance(place, Mapping) and part in place:
            place = place[part]
            parts.append(str(part))
        elif isinstance(part, int) and parts:
            parts[-1] += f"[{part}]"
    return ".".join(parts)


def setting_names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key, those of all alternatives included."""
    for name, field in model.model_fields.items():
        nested = list(models_in(field.annotation))
        yield f"{prefix}{name}"
        for alternative in nested:
            yield from setting_names(alternative, f"{prefix}{name}.")


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The settings models that an annotation may stand for."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)
