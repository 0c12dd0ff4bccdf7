"""How a task's image is called, and how a run keeps to the digests that its build-images found."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from agentic.sandbox.base import ImageReference
from agentic.sandbox.errors import ImageMissingError
from agentic.sandbox.images import RegistryImages, open_images, pins_folder
from agentic.sandbox.rootfs import RootfsStore, environment_hash
from agentic.sandbox.settings import PodSandbox


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment/Dockerfile").write_text("FROM scratch\n")
    return tmp_path / "environment"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("{registry}/swe-bench/{instance_id}:latest", "r.example/team/swe-bench/astropy__astropy-12907:latest"),
        ("{registry}/t/{task}:1", "r.example/team/t/astropy-astropy-12907:1"),
        ("q.example/all", "q.example/all"),
    ],
)
def test_a_name_follows_the_pattern(environment: Path, pattern: str, name: str) -> None:
    images = RegistryImages(PodSandbox(registry="r.example/team", image_pattern=pattern))
    assert images.find("Astropy__astropy-12907", environment, None) == ImageReference(name)


def test_the_guides_pattern_is_the_default_and_asks_for_the_registry(environment: Path) -> None:
    assert RegistryImages(PodSandbox(registry="r.example")).find("a__b-1", environment, None) == ImageReference(
        "r.example/swe-bench/a__b-1:latest"
    )
    with pytest.raises(
        ImageMissingError, match=r"set sandbox\.image_pattern .* or sandbox\.registry for \{registry\}/swe"
    ):
        RegistryImages(PodSandbox()).find("a__b-1", environment, None)


def test_a_verifiers_own_environment_has_a_name_of_its_own(environment: Path) -> None:
    (environment.parent / "tests").mkdir()
    (environment.parent / "tests/Dockerfile").write_text("FROM scratch\n")
    images = RegistryImages(PodSandbox(registry="r.example"))
    found = images.find("a__b-1", environment.parent / "tests", None)
    assert found == ImageReference("r.example/swe-bench/a__b-1-verifier:latest")


def test_a_name_can_say_what_the_image_is_built_from(environment: Path) -> None:
    images = RegistryImages(PodSandbox(image_pattern="r.example/tasks:{environment}"))
    digits = environment_hash(environment)[:32]
    assert images.find("t", environment, None) == ImageReference(f"r.example/tasks:{digits}")


@pytest.mark.parametrize("pattern", ["r.example/{what}", "r.example/{}", "r.example/{task"])
def test_a_pattern_with_parts_that_stand_for_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"use \{registry\}, \{instance_id\}, \{task\}, \{environment\}"):
        PodSandbox(image_pattern=pattern)


def test_a_run_starts_from_the_digests_that_its_shards_wrote_and_the_last_word_counts(
    environment: Path, tmp_path: Path
) -> None:
    store = RootfsStore(tmp_path / "images")
    folder = pins_folder(store.root, "run")
    folder.mkdir(parents=True)
    name, digest = "r.example/swe-bench/one:latest", f"r.example/swe-bench/one@sha256:{'a' * 64}"
    rows = [{"name": name, "image": ""}, {"name": name, "image": digest}, {"name": "other", "image": "x"}]
    (folder / "build-images-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"name": "torn')
    sandbox = PodSandbox(registry="r.example")
    assert open_images(sandbox, store, "run").find("one", environment, None) == ImageReference(digest)
    unseen = open_images(sandbox, store, "run").find("two", environment, None)
    assert unseen == ImageReference("r.example/swe-bench/two:latest"), "what nobody looked for is called by its name"
    assert open_images(sandbox, store, "other-run").find("one", environment, None) == ImageReference(name)
    assert open_images(sandbox, store).find("one", environment, None) == ImageReference(name)
