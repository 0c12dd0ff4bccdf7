"""The pods of build-images: small where BuildKit does the work, and given what registries ask for."""

from typing import Any

import pytest

from agentic.cluster.objects.image_build import LOGIN_FOLDER
from workflows.pipeline import build_workflow
from workflows.settings import load_settings


def template(*arguments: str) -> dict[str, Any]:
    settings = load_settings("swe-qwen2.5-7b", arguments, {})
    document = build_workflow(settings, "swe-qwen2.5-7b", "run")
    return next(one for one in document["spec"]["templates"] if one["name"] == "build-images")


def login(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [volume for volume in found.get("volumes", []) if "secret" in volume]


@pytest.mark.parametrize(("provider", "image"), [("bubblewrap", "trainer"), ("pod", "steps"), ("kruise", "steps")])
def test_only_root_folders_for_this_machine_take_the_large_image_and_share(provider: str, image: str) -> None:
    found = template(f"sandbox.provider={provider}")["script"]
    assert found["image"] == f"agentic-rl/{image}:0.1.0"
    assert found["resources"]["limits"]["memory"] == ("32Gi" if image == "trainer" else "2Gi")


@pytest.mark.parametrize("setting", ["images.registry.secret=mine", "cluster.image_pull_secret=mine"])
def test_the_secret_of_the_registry_is_where_the_step_looks_for_logins(setting: str) -> None:
    found = template(setting)
    (volume,) = login(found)
    assert volume["secret"] == {
        "secretName": "mine",
        "optional": True,
        "items": [{"key": ".dockerconfigjson", "path": "config.json"}],
    }
    assert {"name": "DOCKER_CONFIG", "value": LOGIN_FOLDER} in found["script"]["env"]
    mounts = {mount["name"]: mount["mountPath"] for mount in found["script"]["volumeMounts"]}
    assert mounts[volume["name"]] == LOGIN_FOLDER


def test_without_a_secret_the_logins_of_whoever_runs_the_step_count() -> None:
    found = template()
    assert login(found) == []
    assert "DOCKER_CONFIG" not in {variable["name"] for variable in found["script"]["env"]}
