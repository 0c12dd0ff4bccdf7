"""Images for the cluster for tests: what the writer promises, and what the base image holds."""

import hashlib
import json
import os
import shutil
import stat
import tarfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.sandbox.base_folder import plan_base
from testbed.images import Below, Entry, ImageConfig, write_image
from testbed.sandbox_image import PACKAGES, entries, installed_closure
from testbed.task_images import merged_entries

NAME = "localhost/test:1"
PATHS = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3).map("/".join)
CONTENTS = st.dictionaries(PATHS, st.binary(max_size=2000), max_size=6)


needs_debian = pytest.mark.skipif(not shutil.which("dpkg-query"), reason="the base is made of Debian packages")


def blobs_of(image: Path) -> dict[str, bytes]:
    with tarfile.open(image) as archive:
        members = {member.name: archive.extractfile(member) for member in archive}
    with tarfile.open(image) as archive:
        return {name: found.read() for name in members if (found := archive.extractfile(name)) is not None}


def written(folder: Path, contents: dict[str, bytes]) -> dict[str, bytes]:
    out = folder / "image.tar"
    write_image(
        out, NAME, [Entry(name, 0o644, data=data) for name, data in sorted(contents.items())], ImageConfig({"A": "b"})
    )
    return blobs_of(out)


@given(contents=CONTENTS)
def test_every_digest_and_size_in_an_image_is_that_of_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]
) -> None:
    blobs = written(tmp_path_factory.mktemp("image"), contents)

    def open_blob(described: dict[str, object]) -> bytes:
        data = blobs[f"blobs/{str(described['digest']).replace(':', '/')}"]
        assert described["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert described["size"] == len(data)
        return data

    (manifest,) = json.loads(blobs["index.json"])["manifests"]
    assert manifest["annotations"]["io.containerd.image.name"] == NAME
    body = json.loads(open_blob(manifest))
    config = json.loads(open_blob(body["config"]))
    (layer,) = body["layers"]
    open_blob(layer)
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    assert config["config"]["Env"] == ["A=b"]


def test_the_same_content_is_the_same_image(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    first.mkdir()
    second.mkdir()
    assert written(first, {"a": b"1", "b": b"2"}) == written(second, {"b": b"2", "a": b"1"})


def test_an_image_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_image(tmp_path / "image.tar", NAME, [Entry("gone", source=tmp_path / "gone")], ImageConfig())
    assert list(tmp_path.iterdir()) == []


def test_an_image_upon_another_names_its_layers_and_holds_only_its_own(tmp_path: Path) -> None:
    lower, upper = tmp_path / "lower.tar", tmp_path / "upper.tar"
    write_image(lower, NAME, [Entry("a", data=b"1")], ImageConfig())
    below = Below.of(lower)
    write_image(upper, NAME, [Entry("b", data=b"2")], ImageConfig(), below)
    both = Below.of(upper)
    assert both.layers[:1] == below.layers
    assert both.diff_ids == tuple(layer["digest"] for layer in both.layers)
    held = [f"blobs/{layer['digest'].replace(':', '/')}" in blobs_of(upper) for layer in both.layers]
    assert held == [False, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what overlayfs marks deleted files with")
def test_what_a_layer_deletes_or_replaces_is_deleted_and_replaced_in_the_image(tmp_path: Path) -> None:
    lower, middle, upper = (tmp_path / name for name in ("lower", "middle", "upper"))
    for path in ("lower/app/old.py", "lower/app/kept.py", "lower/data/one", "upper/data/two"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (middle / "app").mkdir(parents=True)
    for path in ("app/old.py", "data"):
        os.mknod(middle / path, stat.S_IFCHR)
    merged = [entry.path for entry in merged_entries((upper, middle, lower))]
    assert merged == ["app", "app/.wh.old.py", "app/kept.py", "data", "data/.wh..wh..opq", "data/two"]


@needs_debian
def test_the_base_holds_a_shell_python_and_all_that_its_packages_need() -> None:
    packages = installed_closure(PACKAGES)
    assert {"bash", "coreutils", "libc6"} <= set(packages)
    found = {entry.path.lstrip("/"): entry for entry in entries(plan_base(), packages)}
    for program in ("usr/bin/bash", "usr/bin/env", "usr/bin/awk", "opt/python/bin/python3"):
        assert program in found
    assert not any(path.startswith(("usr/share/doc/", "usr/local/")) for path in found)


@needs_debian
def test_the_base_names_each_path_once_and_after_its_folder() -> None:
    paths = [entry.path.strip("/") for entry in entries(plan_base(), installed_closure(["bash"]))]
    assert len(paths) == len(set(paths))
    seen = {"."}
    for path in paths:
        assert str(PurePosixPath(path).parent) in seen
        seen.add(path)
