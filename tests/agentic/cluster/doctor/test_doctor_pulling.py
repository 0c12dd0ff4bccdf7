"""Secrets for registries: there, readable, and for the registry and the region of the images."""

import base64
import json
from typing import Any

import pytest

from agentic.cluster.doctor import ImageUse
from agentic.cluster.doctor.pulling import host_of, judge_secret
from agentic.cluster.troubles import Trouble

TRAINER = ImageUse("hub.cn-hangzhou.example/rl/trainer:0.1.0", "cluster.trainer_image", ("acr-registry",))


def secret(*hosts: str, kind: str = "kubernetes.io/dockerconfigjson", text: str | None = None) -> dict[str, Any]:
    config = json.dumps({"auths": {host: {"auth": "eDp5"} for host in hosts}}) if text is None else text
    return {"type": kind, "data": {".dockerconfigjson": base64.b64encode(config.encode()).decode()}}


def judge(found: dict[str, Any] | None, use: ImageUse = TRAINER) -> list[Trouble]:
    return list(judge_secret("acr-registry", found, [use]))


@pytest.mark.parametrize("host", ["hub.cn-hangzhou.example", "https://hub.cn-hangzhou.example/v2/"])
def test_a_secret_for_the_images_registry_is_no_trouble(host: str) -> None:
    assert judge(secret(host)) == []


def test_a_missing_secret_is_named_with_the_command_that_makes_it() -> None:
    (trouble,) = judge(None)
    assert trouble.name == "image-pull-secret-missing"
    assert "--docker-server=hub.cn-hangzhou.example" in trouble.remedy


def test_a_secret_of_another_region_is_named_with_both_regions() -> None:
    (trouble,) = judge(secret("hub.cn-beijing.example"))
    assert trouble.name == "image-pull-secret-other-region"
    assert "(regions cn-beijing and cn-hangzhou)" in trouble.message


@pytest.mark.parametrize(
    ("host", "image"),
    [
        ("1.ecr.us-west-2.example", "1.ecr.us-east-1.example"),
        ("europe-west4-docker.example", "asia-east1-docker.example"),
    ],
)
def test_regions_are_told_in_the_words_of_other_clouds_too(host: str, image: str) -> None:
    (trouble,) = judge(secret(host), ImageUse(f"{image}/a:1", "cluster.steps_image"))
    assert trouble.name == "image-pull-secret-other-region"


def test_a_secret_of_another_registry_is_named() -> None:
    (trouble,) = judge(secret("other.example"))
    assert trouble.name == "image-pull-secret-other-registry"
    assert "cluster.trainer_image" in trouble.message


@pytest.mark.parametrize("found", [secret(kind="Opaque"), secret(text="no JSON"), secret(text="{}")])
def test_a_secret_that_kubelet_cannot_use_is_named(found: dict[str, Any]) -> None:
    assert [trouble.name for trouble in judge(found)] == ["image-pull-secret-unusable"]


@pytest.mark.parametrize(
    ("image", "host"),
    [
        ("agentic-rl/steps:0.1.0", ""),
        ("python", ""),
        ("registry.example/a/b:1", "registry.example"),
        ("10.244.0.1:5000/a", "10.244.0.1:5000"),
        ("localhost/a", "localhost"),
    ],
)
def test_the_registry_of_an_image_is_what_its_name_begins_with(image: str, host: str) -> None:
    assert host_of(image) == host
