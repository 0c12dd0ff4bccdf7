"""The root-folder store and the base folder."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.sandbox.base_folder import PYTHON, move_library_path, plan_base
from agentic.sandbox.errors import ImageStoreError
from agentic.sandbox.rootfs import ImageConfig, RootfsStore, environment_hash


def make_environment(folder: Path) -> Path:
    (folder / "repo").mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM agentic/base:local\n")
    (folder / "repo" / "run.sh").write_text("true\n")
    (folder / "repo" / "link").symlink_to("run.sh")
    return folder


def test_the_hash_of_an_environment_sees_contents_modes_names_and_links(tmp_path: Path) -> None:
    folder = make_environment(tmp_path / "e")
    seen = {environment_hash(folder)}
    script, link = folder / "repo" / "run.sh", folder / "repo" / "link"

    def expect_change() -> None:
        value = environment_hash(folder)
        assert value not in seen
        seen.add(value)

    script.chmod(0o755)
    expect_change()
    script.write_text("false\n")
    expect_change()
    script.rename(folder / "repo" / "go.sh")
    expect_change()
    link.unlink()
    link.symlink_to("go.sh")
    expect_change()
    (folder / "empty").mkdir()
    expect_change()


def test_the_hash_of_an_environment_is_blind_to_place_time_and_caches(tmp_path: Path) -> None:
    first, second = make_environment(tmp_path / "a"), make_environment(tmp_path / "b" / "c")
    os.utime(second / "Dockerfile", (1, 1))
    (second / "repo" / "__pycache__").mkdir()
    (second / "repo" / "__pycache__" / "x.pyc").touch()
    assert environment_hash(first) == environment_hash(second)


def test_an_image_is_found_only_when_recorded_and_whole(tmp_path: Path) -> None:
    store, environment = RootfsStore(tmp_path / "store"), make_environment(tmp_path / "e")
    assert store.lookup(environment) is None
    base = store.ensure_base()
    with store.building() as folder:
        (folder / "file").write_text("x")
        layer = store.add_layer(folder, (base.layers[0].name,))
    image = store.rootfs((base.layers[0].name, layer), ImageConfig({"A": "b"}, "/app", "root"))
    store.record(environment_hash(environment), image)
    assert RootfsStore(tmp_path / "store").lookup(environment) == image
    assert image.layers[0].name == layer, "topmost first"
    image.layers[0].rename(tmp_path / "gone")
    assert store.lookup(environment) is None


def test_the_same_content_is_kept_once_and_a_stack_never_repeats_a_layer(tmp_path: Path) -> None:
    store = RootfsStore(tmp_path)

    def add(*below: str) -> str:
        with store.building() as folder:
            (folder / "same").write_text("same")
            return store.add_layer(folder, below)

    first = add()
    assert add() == first
    assert add(first) != first
    assert list((tmp_path / "building").iterdir()) == []


def test_a_damaged_index_says_what_to_do(tmp_path: Path) -> None:
    store = RootfsStore(tmp_path)
    path = tmp_path / "index" / store.base_key / "abc.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ImageStoreError, match="remove it and run build_images again"):
        store.find("abc")


def test_images_of_another_base_or_owner_are_not_found(tmp_path: Path) -> None:
    mine, other = RootfsStore(tmp_path), RootfsStore(tmp_path, owner=100_000)
    mine.record("abc", mine.ensure_base())
    assert mine.find("abc") is not None
    assert other.find("abc") is None


def _ensure_base(root: Path) -> str:
    return RootfsStore(root).ensure_base().digest


def test_processes_that_make_the_base_at_once_agree(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        digests = pool.map(_ensure_base, [tmp_path] * 4)
    assert len(set(digests)) == 1
    assert len(list((tmp_path / "layers").iterdir())) == 1


def test_work_of_dead_builders_is_removed_and_that_of_the_living_kept(tmp_path: Path) -> None:
    store = RootfsStore(tmp_path)
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    (tmp_path / "building" / f"{dead.pid}-0-x").mkdir(parents=True)
    with store.building() as mine:
        assert store.remove_stale_work() == 1
        assert mine.is_dir()


def test_the_base_holds_nothing_of_the_hosts_accounts() -> None:
    base = plan_base()
    assert base.files["etc/passwd"][1].count(b"\n") == 2
    assert not any(name.startswith(("etc/shadow", "root/", "home/", "var/lib")) for name in base.files)
    sources = [bind.source for bind in base.binds]
    assert not {"/", "/etc", "/root", "/home", "/var", "/proc", "/sys", "/run"} & set(sources)


def test_folders_that_are_no_links_into_usr_are_bound(tmp_path: Path) -> None:
    for name in ("usr", "bin", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib64").symlink_to("usr/lib64")
    base = plan_base(tmp_path)
    assert {"/usr", "/bin", "/lib"} <= {bind.target for bind in base.binds}
    assert base.links["lib64"] == "usr/lib64"


@given(st.binary(max_size=30), st.text("abc/", min_size=1, max_size=30), st.binary(max_size=30))
def test_moving_a_library_path_keeps_every_other_byte(before: bytes, path: str, after: bytes) -> None:
    old = f"/{path}"
    binary = before + b"\0" + old.encode() + b"\0" + after
    moved = move_library_path(binary, old)
    assert len(moved) == len(binary)
    if len(old) >= len(f"{PYTHON}/lib") and (old.encode() + b"\0") not in before + after:
        assert moved.startswith(before + b"\0" + f"{PYTHON}/lib\0".encode())
        assert moved.endswith(after)
