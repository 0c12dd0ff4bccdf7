"""Secrets for registries: there, readable, and for the registry and the region of the images."""

import base64
import json
from typing import Any

import pytest

from agentic.cluster.doctor import ImageUse
from agentic.cluster.doctor.pulling import host_of, is_for, judge_secrets
from agentic.cluster.troubles import Trouble

TRAINER = ImageUse("hub.cn-hangzhou.example/rl/trainer:0.1.0", "cluster.trainer_image", ("acr-registry",))


def secret(*hosts: str, kind: str = "kubernetes.io/dockerconfigjson", text: str | None = None) -> dict[str, Any]:
    config = json.dumps({"auths": {host: {"auth": "eDp5"} for host in hosts}}) if text is None else text
    return {"type": kind, "data": {".dockerconfigjson": base64.b64encode(config.encode()).decode()}}


def judge(found: dict[str, Any] | None, use: ImageUse = TRAINER) -> list[Trouble]:
    return list(judge_secrets({("rl", name): found for name in use.secrets}, [use], "rl"))


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
    (trouble,) = judge(secret(host), ImageUse(f"{image}/a:1", "cluster.steps_image", ("s",)))
    assert trouble.name == "image-pull-secret-other-region"


def test_a_secret_of_another_registry_is_named() -> None:
    (trouble,) = judge(secret("other.example"))
    assert trouble.name == "image-pull-secret-other-registry"
    assert "cluster.trainer_image" in trouble.message


@pytest.mark.parametrize("found", [secret(kind="Opaque"), secret(text="no JSON"), secret(text="{}")])
def test_a_secret_that_kubelet_cannot_use_is_named(found: dict[str, Any]) -> None:
    assert [trouble.name for trouble in judge(found)] == ["image-pull-secret-unusable"]


def test_several_secrets_are_judged_together() -> None:
    use = ImageUse("a.example/x:1", "cluster.steps_image", ("for-a", "for-b"))
    other = ImageUse("b.example/x:1", "sandbox.base_image", ("for-a", "for-b"))
    secrets = {("rl", "for-a"): secret("a.example"), ("rl", "for-b"): secret("b.example")}
    assert list(judge_secrets(secrets, [use, other], "rl")) == []
    third = ImageUse("c.example/x:1", "cluster.trainer_image", ("for-a", "for-b"))
    (trouble,) = judge_secrets(secrets, [use, other, third], "rl")
    assert (trouble.name, trouble.where) == ("image-pull-secret-other-registry", "secret for-a, secret for-b")


def test_secrets_of_sandboxes_are_looked_for_where_sandboxes_live() -> None:
    use = ImageUse("a.example/x:1", "sandbox.base_image", ("s",), "sandboxes")
    assert list(judge_secrets({("sandboxes", "s"): secret("a.example")}, [use], "rl")) == []
    (trouble,) = judge_secrets({("sandboxes", "s"): None}, [use], "rl")
    assert trouble.where == "secret s in sandboxes"
    assert "--namespace=sandboxes" in trouble.remedy


@pytest.mark.parametrize("host", ["https://index.docker.io/v1/", "docker.io", "index.docker.io"])
@pytest.mark.parametrize("image", ["docker.io/team/a:1", "team/a:1", "index.docker.io/team/a:1"])
def test_docker_hub_is_known_by_all_its_names(host: str, image: str) -> None:
    assert judge(secret(host), ImageUse(image, "cluster.steps_image", ("s",))) == []


@pytest.mark.parametrize(
    ("entry", "image", "fits"),
    [
        ("r.example", "r.example/a/b:1", True),
        ("https://r.example/v2/", "r.example/a:1", True),
        ("r.example:5000", "r.example:5000/a", True),
        ("r.example", "r.example:5000/a", False),
        ("*.example", "r.example/a", True),
        ("*.example", "a.r.example/a", False),
        ("r*.exam*", "r1.example/a", True),
        ("r.example/team", "r.example/team/a:1", True),
        ("r.example/team", "r.example/teams/a:1", False),
        ("r.example/team", "r.example/a", False),
        ("index.docker.io", "team/a", True),
        ("r.example", "team/a", False),
    ],
)
def test_entries_are_read_as_kubelet_reads_them(entry: str, image: str, fits: bool) -> None:
    assert is_for(entry, image) is fits


@pytest.mark.parametrize(
    ("image", "host"),
    [
        ("agentic-rl/steps:0.1.0", "docker.io"),
        ("python", "docker.io"),
        ("registry.example/a/b:1", "registry.example"),
        ("10.244.0.1:5000/a", "10.244.0.1:5000"),
        ("localhost/a", "localhost"),
    ],
)
def test_the_registry_of_an_image_is_what_its_name_begins_with(image: str, host: str) -> None:
    assert host_of(image) == host
