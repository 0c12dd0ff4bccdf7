"""What docs/from-the-guide.md has people type, against the objects that a run makes: every name in it is there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentic.cluster.objects.image_build import ImageBuild, image_build_job
from workflows.objects import objects, write_objects
from workflows.settings import Settings, load_settings, setting_names

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "from-the-guide.md"
KINDS = {
    "pvc": "PersistentVolumeClaim",
    "rayclusters": "RayCluster",
    "serviceaccount": "ServiceAccount",
    "role": "Role",
    "rolebinding": "RoleBinding",
    "deployment": "Deployment",
    "service": "Service",
}
OF_KUBERAY = {("ray.io/node-type", "head")}
"""Labels that its operator gives."""


def kubectl() -> Iterator[list[str]]:
    for block in re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            for command in (*re.findall(r"\$\((.*?)\)", line), re.sub(r"\$\(.*?\)", "POD", line)):
                if command.startswith("kubectl "):
                    yield shlex.split(command)[1:]


@pytest.fixture(scope="module")
def made() -> list[dict[str, Any]]:
    settings = load_settings("swe-qwen2.5-7b", [], {})
    build = ImageBuild("b", "first", "0", "k", ["true"], "i", deadline_seconds=1, keep_seconds=1)
    return [
        *(body for _, bodies in objects(settings, "first") for body in bodies),
        image_build_job(settings.cluster, build),
    ]


def labels_in(body: Any) -> Iterator[tuple[str, str]]:
    if isinstance(body, dict):
        for name, value in body.items():
            if name == "labels":
                yield from value.items()
            yield from labels_in(value)
    elif isinstance(body, list):
        for part in body:
            yield from labels_in(part)


def test_every_object_that_a_command_names_is_made(made: list[dict[str, Any]]) -> None:
    there = {(body["kind"], body["metadata"]["name"]) for body in made}
    named = []
    for words in kubectl():
        if words[0] == "get" and len(words) > 2 and not words[2].startswith("-"):
            named += [(KINDS[kind], name) for kind in words[1].split(",") for name in words[2:]]
    assert len(named) >= 8
    assert [one for one in named if one not in there] == []


def test_every_label_that_a_command_selects_by_is_on_something(made: list[dict[str, Any]]) -> None:
    given = {*labels_in(made), *OF_KUBERAY}
    chosen = [words[words.index("-l") + 1] for words in kubectl() if "-l" in words]
    chosen += [word.partition("=")[2] for words in kubectl() for word in words if word.startswith("--labels=")]
    assert len(chosen) >= 5
    assert [one for one in chosen if tuple(one.split("=")) not in given] == []


def test_the_ports_that_commands_name_are_served(made: list[dict[str, Any]]) -> None:
    by_name = {(body["kind"], body["metadata"]["name"]): body for body in made}
    (forward,) = (words for words in kubectl() if words[0] == "port-forward")
    service, port = forward[1].removeprefix("svc/"), int(forward[2].partition(":")[2])
    head = by_name["RayCluster", service.removesuffix("-head-svc")]["spec"]["headGroupSpec"]
    ports = head["template"]["spec"]["containers"][0]["ports"]
    assert port in [one["containerPort"] for one in ports]
    (tried,) = (words for words in kubectl() if words[0] == "run")
    host, port = tried[-2], int(tried[-1])
    assert [one["port"] for one in by_name["Service", host]["spec"]["ports"]] == [port]


def test_every_setting_that_the_page_names_exists() -> None:
    known = {*setting_names(Settings)}
    sections = "|".join(Settings.model_fields)
    named = set(re.findall(rf"`((?:{sections})\.[a-z_.]+)(?:=[^`]*)?`", GUIDE.read_text()))
    # Fields that a cell lists after the first one, each as `.name`.
    for first, rest in re.findall(rf"`((?:{sections})\.[a-z_.]+)`((?:, `\.[a-z_]+`)+)", GUIDE.read_text()):
        named |= {f"{first.rpartition('.')[0]}{field}" for field in re.findall(r"`(\.[a-z_]+)`", rest)}
    assert len(named) > 30
    assert sorted(named - known) == []


def test_the_files_that_it_applies_are_written(tmp_path: Path) -> None:
    written = {path.name for path in write_objects(load_settings("swe-qwen2.5-7b", [], {}), "first", tmp_path)}
    named = set(re.findall(r"\d\d-[a-z-]+\.yaml", GUIDE.read_text()))
    assert named == written
