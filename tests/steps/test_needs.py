"""Settings as what a cluster has to have, and what lies on the volumes."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic.models.settings import HuggingFaceModel, PathModel, TinyModel
from agentic.tasks.settings import FolderData, MutationData, RowsData
from agentic.training.settings import TrainSettings
from steps import needs
from steps.volume_troubles import describe_data, describe_model, find_volume_troubles
from workflows.settings import Settings, load_settings

QWEN = {
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}


def facts(*words: str, profile: str = "swe-qwen2.5-7b") -> Any:
    return needs.facts_of(load_settings(profile, words, {}), [], (), None)


def test_the_default_run_needs_a_head_as_large_as_the_guides() -> None:
    head = facts().pods[0]
    assert (head.setting, head.cpus, head.gpus) == ("cluster.head", Decimal(50), 8)
    assert head.memory_bytes == Decimal(200 * 1024**3)


def test_steps_go_where_the_taints_of_a_run_let_them_and_ray_where_its_own_do_as_well() -> None:
    words = ('cluster.tolerations=[{"key": "a", "operator": "Exists"}]', 'cluster.ray_tolerations=[{"key": "b"}]')
    found = {need.setting: [one["key"] for one in need.tolerations] for need in facts(*words).pods}
    assert found == {"cluster.head": ["a", "b"], "cluster.light": ["a"], "cluster.heavy": ["a"]}


def test_sandboxes_that_are_pods_need_room_for_all_at_once() -> None:
    found = {need.name: need for need in facts("sandbox.provider=pod", "rollout.concurrency=64").pods}
    assert found["sandboxes"].count == 64
    assert "sandboxes" not in {need.name for need in facts(profile="demo").pods}


def test_images_go_with_the_secrets_that_they_are_pulled_with() -> None:
    words = ("cluster.image_pull_secret=acr-registry", "sandbox.provider=pod", 'sandbox.image_pull_secrets=["other"]')
    found = {use.setting: use.secrets for use in facts(*words).images}
    assert found == {
        "cluster.steps_image": ("acr-registry",),
        "cluster.trainer_image": ("acr-registry",),
        "sandbox.base_image": ("other",),
    }


def test_images_of_sandboxes_are_pulled_where_they_live_and_pushed_by_their_own_secret() -> None:
    words = (
        *("sandbox.provider=pod", "sandbox.namespace=boxes", 'sandbox.image_pull_secrets=["pull"]'),
        *("sandbox.registry=r.example/team", "images.registry.secret=push", "cluster.image_pull_secret=acr"),
    )
    found = [(use.image, use.secrets, use.namespace) for use in facts(*words).images]
    task = "r.example/team/swe-bench/x:latest"
    assert found[-2:] == [(task, ("pull",), "boxes"), (task, ("push",), None)]
    assert {need.name: need.namespace for need in facts(*words).pods}["sandboxes"] == "boxes"


@pytest.mark.parametrize("address", ["unix:///run/buildkit/buildkitd.sock", "docker-container://b", "kube-pod://b"])
def test_ways_to_buildkit_that_no_pod_could_try_are_not_tried(address: str) -> None:
    words = ("sandbox.provider=pod", f"images.buildkit_address={address}")
    assert "builder-unreachable" not in {target.trouble for target in facts(*words).targets}
    assert not facts(*words).builds_in_namespace
    assert facts("sandbox.provider=pod").builds_in_namespace


def test_checkpoints_are_estimated_from_the_model_and_the_schedule(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(QWEN))
    settings = Settings(model=HuggingFaceModel(id="a/b", name="m"), train=TrainSettings(steps=250, save_every=100))
    found = needs.volume_bytes(settings, tmp_path)
    assert found["runs"] == pytest.approx(3 * 14 * 7.6e9, rel=0.01)
    assert found["models"] == pytest.approx(2 * 7.6e9, rel=0.01)
    few = settings.model_copy(update={"train": TrainSettings(steps=900, save_every=100, keep_checkpoints=2)})
    assert needs.volume_bytes(few, tmp_path)["runs"] == pytest.approx(3 * 14 * 7.6e9, rel=0.01)


@pytest.mark.parametrize(("id", "count"), [("Qwen/Qwen2.5-7B-Instruct", 7e9), ("a/b-0.5B", 0.5e9), ("a/plain", None)])
def test_a_model_that_is_not_here_is_measured_by_its_name(id: str, count: float | None) -> None:
    assert needs.count_parameters(HuggingFaceModel(id=id), None) == count


def test_only_what_comes_from_outside_has_to_be_reached() -> None:
    assert [(target.trouble, target.address) for target in facts().targets] == [
        ("no-egress", "https://www.modelscope.cn"),
        ("no-egress", "https://github.com"),
    ]
    assert len(facts('data.command=["fetch", "from-our-mirror"]').targets) == 1
    assert facts(profile="demo").targets == ()
    words = (
        "sandbox.provider=pod",
        "sandbox.image_pattern=registry.example/{task}:1",
        "images.buildkit_address=tcp://b:1234",
    )
    found = {target.trouble: (target.kind, target.address) for target in facts(*words, profile="demo").targets}
    assert found == {"package-index-unreachable": ("pip", "pip"), "builder-unreachable": ("tcp", "b:1234")}


def found_on(root: Path, data: Any, model: Any, checkpoint_bytes: float = 0.0) -> list[str]:
    return [one.name for one in find_volume_troubles(root, data, model, checkpoint_bytes)]


def test_a_workspace_with_room_is_no_trouble(tmp_path: Path) -> None:
    assert found_on(tmp_path, MutationData(), TinyModel(), 1.0) == []


def test_checkpoints_that_the_volume_cannot_hold_are_named(tmp_path: Path) -> None:
    assert found_on(tmp_path, MutationData(), TinyModel(), 1e18) == ["claim-too-small"]


def test_paths_that_are_wrong_are_named_before_anything_is_done(tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")
    assert found_on(tmp_path, FolderData(path=nothing), PathModel(path=nothing)) == ["path-missing", "path-missing"]
    assert found_on(tmp_path, RowsData(path=nothing), TinyModel()) == ["path-missing"]


def test_a_model_that_lacks_parts_where_it_lies_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert found_on(tmp_path, MutationData(), PathModel(path=str(tmp_path))) == ["model-incomplete"]


def test_a_folder_without_tasks_is_named(tmp_path: Path) -> None:
    assert found_on(tmp_path, FolderData(path=str(tmp_path)), TinyModel()) == ["data-incomplete"]


def test_a_data_set_is_told_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "datasets/repair"
    data = MutationData()
    assert "is not there yet: download-data makes it" in describe_data(tmp_path, data)
    (folder / "tasks/a").mkdir(parents=True)
    assert "is not complete: download-data goes on" in describe_data(tmp_path, data)
    about = {"name": "repair", "source": "mutation", "recipe_sha256": "0", "seed": 0, "counts": {}}
    manifest = {**about, "splits": {"train": ["a"], "held": ["b"]}, "content_sha256": "0"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "lacks the task b, which its manifest names" in describe_data(tmp_path, data)
    (folder / "tasks/b").mkdir()
    assert describe_data(tmp_path, data) == "data set repair is there and complete, 2 tasks"
    (folder / "manifest.json").write_text("{")
    assert "cannot be read" in describe_data(tmp_path, data)


def test_a_download_that_was_cut_is_told_and_goes_on(tmp_path: Path) -> None:
    assert "is not there yet" in describe_model(tmp_path, TinyModel())
    (tmp_path / "models/tiny").mkdir(parents=True)
    (tmp_path / "models/tiny/config.json").write_text("{}")
    assert "download-model goes on" in describe_model(tmp_path, TinyModel())
