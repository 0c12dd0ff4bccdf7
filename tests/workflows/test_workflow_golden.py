"""The compiled workflow of each profile: as reviewed, accepted by Argo's schema, interpreted by the local runner."""

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hera.workflows._runner.script_annotations_util import map_runner_input
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match

from steps.build_images import BuildImagesInput
from workflows.local.document import read_document
from workflows.local.substitution import substitute
from workflows.pipeline import SECTIONS, STEPS, build_workflow, labels_of
from workflows.request import Request
from workflows.settings import Settings, load_settings, profile_names

HERE = Path(__file__).parent
PREFIX = "io.argoproj.workflow.v1alpha1."
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"


def compiled(profile: str, *arguments: str) -> dict[str, Any]:
    return build_workflow(load_settings(profile, arguments, {}), profile, "golden")


def strict(schema: Any) -> Any:
    """Unknown fields refused, as a server does when it is asked to."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict):
        closed["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        closed.setdefault("additionalProperties", False)
    return closed


@functools.cache
def argo() -> Draft7Validator:
    schema = json.loads((HERE / "schemas" / "argo-workflow.schema.json").read_text())
    schema["definitions"] |= {INT_OR_STRING: {"type": ["string", "integer"]}, f"{PREFIX}Item": {}}
    return Draft7Validator({"$ref": f"#/definitions/{PREFIX}Workflow", "definitions": strict(schema["definitions"])})


def problems(document: dict[str, Any]) -> list[str]:
    return [
        f"{'.'.join(map(str, best.absolute_path))}: {best.message}"
        for error in argo().iter_errors(document)
        if (best := best_match([error])) is not None
    ]


@given(profile=st.one_of(st.text(max_size=90), st.from_regex(r"(\./|/[a-z]+ x/)?[\w .-]{0,80}\.ya?ml", fullmatch=True)))
def test_whatever_a_profile_is_called_its_labels_are_valid(profile: str) -> None:
    run_id = Request("render", profile, None, None, (), ()).make_run_id()
    labels = labels_of(run_id, profile)
    assert labels["agentic-rl/run"] == run_id
    for value in labels.values():
        assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", value)
        assert len(value) <= 63


def test_a_profile_given_by_its_path_is_labelled_by_its_name() -> None:
    path = "./workflows/profiles/demo.yaml"
    document = build_workflow(load_settings(path, [], {}), path, "first")
    assert document["metadata"]["labels"]["agentic-rl/profile"] == "demo"
    assert {"name": "profile", "value": path} in document["spec"]["arguments"]["parameters"]


@pytest.mark.parametrize("profile", profile_names())
def test_the_compiled_workflow_is_the_reviewed_one(profile: str, golden: Any) -> None:
    text = yaml.safe_dump(compiled(profile), sort_keys=False, width=120)
    golden(HERE / "golden" / f"{profile}.yaml", text, parse=yaml.safe_load)


def test_every_golden_file_belongs_to_a_profile() -> None:
    assert sorted(path.stem for path in (HERE / "golden").glob("*.yaml")) == profile_names()


@pytest.mark.parametrize("profile", profile_names())
def test_argo_accepts_the_workflow_with_unknown_fields_refused(profile: str) -> None:
    assert problems(compiled(profile, "cluster.image_pull_secret=acr-registry")) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "onExitt"], "cleanup"),
        (["spec", "templates", 0, "retryStrategy", "limits"], 3),
        (["spec", "templates", 0, "script", "imagePullpolicy"], "Always"),
        (["spec", "templates", -1, "dag", "tasks", 0, "depend"], "x"),
        (["spec", "parallelism"], "many"),
        (["metadata", "label"], {}),
    ],
)
def test_the_schema_test_would_find_a_typing_error(path: list[Any], value: Any) -> None:
    document = copy.deepcopy(compiled("demo"))
    place: Any = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    assert problems(document)


@pytest.mark.parametrize("profile", profile_names())
def test_the_local_runner_interprets_all_of_it(profile: str) -> None:
    read_document(compiled(profile))


@pytest.mark.parametrize("profile", profile_names())
def test_every_object_carries_the_run_and_every_pod_its_step(profile: str) -> None:
    document = compiled(profile)
    assert document["metadata"]["labels"]["agentic-rl/run"] == "golden"
    for template in document["spec"]["templates"]:
        if "script" in template:
            assert template["metadata"]["labels"]["agentic-rl/run"] == "golden"
            assert template["metadata"]["labels"]["agentic-rl/step"] == template["name"]


def test_parameters_are_named_and_readable_and_hold_the_settings() -> None:
    settings = load_settings("demo", [], {})
    parameters = {p["name"]: p["value"] for p in compiled("demo")["spec"]["arguments"]["parameters"]}
    assert set(parameters) == {"run_id", "profile", "start_from", *SECTIONS}
    for section in SECTIONS:
        assert json.loads(parameters[section]) == getattr(settings, section).model_dump(mode="json")


def test_every_step_is_a_task_and_the_exit_handler_cleans_up() -> None:
    document = compiled("demo")
    dags = {
        t["name"]: [task["name"] for task in t["dag"]["tasks"]] for t in document["spec"]["templates"] if "dag" in t
    }
    assert sorted(dags["main"]) == sorted(STEPS)
    handler = next(one for one in document["spec"]["templates"] if one["name"] == document["spec"]["onExit"])
    assert handler["name"] == "cleanup"
    assert all(parameter["value"] for parameter in handler["inputs"]["parameters"])


def test_a_policy_made_from_tasks_waits_for_them_and_a_downloaded_one_does_not() -> None:
    def after(profile: str) -> str:
        templates = {template["name"]: template for template in compiled(profile)["spec"]["templates"]}
        tasks = templates["main"]["dag"]["tasks"]
        return next(str(task["depends"]) for task in tasks if task["name"] == "download-model")

    assert after("demo") == "download-data"
    assert after("swe-qwen2.5-7b") == "preflight"


def test_the_default_profile_is_the_guides_run() -> None:
    settings = load_settings("swe-qwen2.5-7b", [], {})
    assert (settings.data.name, settings.model.name) == ("swebench-verified", "Qwen2.5-7B-Instruct")
    assert settings.train.algorithm == "grpo"
    assert (settings.train.nodes, settings.train.gpus_per_node, settings.train.rollouts_per_prompt) == (1, 8, 4)
    assert (settings.train.validate_every, settings.train.max_tokens_per_gpu) == (100, 12288)
    assert (settings.cluster.head.gpus, settings.cluster.head.cpus, settings.cluster.head.memory) == (8, 50, "200Gi")
    claims = (settings.cluster.models, settings.cluster.datasets)
    assert [(claim.claim, claim.size) for claim in claims] == [("verl-models", "50Gi"), ("verl-dataset", "100Gi")]


def test_the_default_profile_fits_its_model() -> None:
    from agentic.training.sizing import ModelShape, resolve

    # config.json of Qwen2.5-7B-Instruct: 28 layers, 28 heads, 4 of them for keys and values, 7.6 billion parameters.
    shape = ModelShape(parameters=7_615_616_512, attention_heads=28, key_value_heads=4)
    sizing = resolve(load_settings("swe-qwen2.5-7b", [], {}).train, shape)
    assert sizing.total_gpus == 8


def test_settings_without_a_profile_compile() -> None:
    assert problems(build_workflow(Settings(), "defaults", "golden")) == []


def test_items_of_the_fan_out_find_the_sections_in_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Hera's runner gives them to the step: the document's own source and variables, filled in as Argo does."""
    document = compiled("demo")
    template = next(one for one in document["spec"]["templates"] if one["name"] == "build-images")
    names = [parameter["name"] for parameter in template["inputs"]["parameters"]]
    assert names == ["run_id", "data_dir", "shard"]
    values = {one["name"]: one["value"] for one in document["spec"]["arguments"]["parameters"]}
    scope = {f"workflow.parameters.{name}": value for name, value in values.items()}
    scope |= {f"inputs.parameters.{name}": value for name, value in zip(names, ["r", "datasets/d", "0/1"], strict=True)}
    for variable in template["script"]["env"]:
        if variable["name"].startswith("AGENTIC_INPUT_"):
            monkeypatch.setenv(variable["name"], substitute(variable["value"], scope))
    given = json.loads(substitute(template["script"]["source"], scope))
    inputs = map_runner_input(BuildImagesInput, {one["name"]: one["value"] for one in given})
    settings = load_settings("demo", [], {})
    assert (inputs.run_id, inputs.shard) == ("r", "0/1")
    assert (inputs.images, inputs.sandbox, inputs.cluster) == (settings.images, settings.sandbox, settings.cluster)


def test_the_controller_always_looks_at_the_fan_out_so_that_a_retry_cannot_leave_it_open() -> None:
    (main,) = [template["dag"] for template in compiled("demo")["spec"]["templates"] if template["name"] == "main"]
    fanned_out = [task["name"] for task in main["tasks"] if {"withItems", "withParam"} & task.keys()]
    assert main["target"].split() == [*fanned_out, main["tasks"][-1]["name"]]


@pytest.mark.parametrize(
    ("provider", "queued"), [("bubblewrap", {"download-model", "build-images"}), ("pod", {"download-model"})]
)
def test_a_queue_holds_back_only_steps_that_work_themselves(provider: str, queued: set[str]) -> None:
    """Where BuildKit builds, parts of build-images follow: holding quota, they would keep others waiting."""
    document = compiled("demo", "cluster.queue=gpu", f"sandbox.provider={provider}")
    labels = {one["name"]: one["metadata"]["labels"] for one in document["spec"]["templates"] if "metadata" in one}
    assert {name for name, of_step in labels.items() if "kueue.x-k8s.io/queue-name" in of_step} == queued


@pytest.mark.parametrize("profile", profile_names())
def test_every_pod_has_its_share_its_deadline_and_its_retries(profile: str) -> None:
    """And every Workflow its own end, lock and removal."""
    spec = compiled(profile)["spec"]
    assert spec["activeDeadlineSeconds"] > 0
    assert spec["ttlStrategy"].keys() == {"secondsAfterSuccess", "secondsAfterFailure"}
    assert spec["podGC"]["strategy"] == "OnPodSuccess"
    assert spec["synchronization"] == {"mutexes": [{"name": "runs-golden"}]}
    locks = {}
    for template in spec["templates"]:
        if "script" in template:
            shares = template["script"]["resources"]
            assert shares["requests"] == shares["limits"]
            assert shares["requests"].keys() == {"cpu", "memory"}
            assert 0 < template["activeDeadlineSeconds"] <= spec["activeDeadlineSeconds"]
            assert template["retryStrategy"]["retryPolicy"] == "Always"
            if "synchronization" in template:
                locks[template["name"]] = template["synchronization"]
    assert locks.keys() == {"download-data", "download-model"}
