"""Tar streams that a hostile sandbox could send."""

import contextlib
import gzip
import io
import os
import tarfile
from pathlib import Path, PurePosixPath

import pytest
from hostile_archives import nested_past_the_longest_path
from hypothesis import given
from hypothesis import strategies as st

from agentic.sandbox.errors import SandboxTransferError
from agentic.sandbox.transfer import TooLargeError, pack, stays_inside, unpack, unpack_folder

LIMIT_BYTES = 1_000_000


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644, size: int = 0
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, link, mode, size
    return info


def stream(*members: tarfile.TarInfo, folder: bool = True) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        if folder:
            archive.addfile(member(".", tarfile.DIRTYPE, mode=0o755))
        for info in members:
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("name", ["../outside", "/absolute", "a/../../outside"])
def test_names_that_climb_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SandboxTransferError, match="leads out"):
        unpack(stream(member(name)), tmp_path / "in", LIMIT_BYTES)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_a_link_cannot_redirect_a_later_file(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    hostile = stream(member("d", tarfile.SYMTYPE, str(outside)), member("d/file", size=3))
    unpack(hostile, tmp_path / "in", LIMIT_BYTES)
    assert list(outside.iterdir()) == []
    assert (tmp_path / "in" / "d" / "file").read_bytes() == b"xxx"


def test_links_that_lead_out_are_left_out_and_others_kept(tmp_path: Path) -> None:
    links = [member("out", tarfile.SYMTYPE, "/etc/passwd"), member("up", tarfile.SYMTYPE, "../x")]
    unpack(stream(*links, member("in", tarfile.SYMTYPE, "sub/file")), tmp_path / "t", LIMIT_BYTES)
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["in"]


def test_devices_and_pipes_are_skipped_and_set_user_id_is_dropped(tmp_path: Path) -> None:
    hostile = [member("fifo", tarfile.FIFOTYPE), member("disk", tarfile.BLKTYPE), member("su", mode=0o4755)]
    unpack(stream(*hostile), tmp_path / "t", LIMIT_BYTES)
    assert [(path.name, path.stat().st_mode & 0o7777) for path in (tmp_path / "t").iterdir()] == [("su", 0o755)]


def test_hard_links_to_places_outside_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxTransferError):
        unpack(stream(member("h", tarfile.LNKTYPE, "/etc/passwd")), tmp_path / "t", LIMIT_BYTES)


def test_more_than_the_limit_is_refused_while_it_streams(tmp_path: Path) -> None:
    with pytest.raises(TooLargeError, match="download_limit_bytes"):
        unpack(stream(member("big", size=2 * LIMIT_BYTES)), tmp_path / "t", LIMIT_BYTES)


@pytest.mark.parametrize("data", [b"", b"garbage" * 1000])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SandboxTransferError, match="damaged"):
        unpack(io.BytesIO(data), tmp_path / "t", LIMIT_BYTES)


def test_a_file_where_a_folder_is_needed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxTransferError):
        unpack(stream(member("a", size=1), member("a/b", size=1)), tmp_path / "t", LIMIT_BYTES)


def test_a_link_below_a_link_makes_and_removes_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    climbing = [
        member("a", tarfile.DIRTYPE, mode=0o755),
        member("a/up", tarfile.SYMTYPE, ".."),
        member("a/up/out", tarfile.SYMTYPE, "../.."),
        member("a/up/out/file", tarfile.SYMTYPE, "x"),
    ]
    with pytest.raises(SandboxTransferError, match="through a link"):
        unpack(stream(*climbing), tmp_path / "t", LIMIT_BYTES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "t"]
    assert not (tmp_path / "t" / "out").is_symlink()
    assert (tmp_path / "file").read_text() == "kept"


def test_a_sparse_member_is_as_large_as_what_it_unpacks_to(tmp_path: Path) -> None:
    sparse = member("holes", size=LIMIT_BYTES + 1)
    sparse.pax_headers = {"GNU.sparse.map": f"{LIMIT_BYTES},1", "GNU.sparse.size": str(LIMIT_BYTES + 1)}
    header = sparse.tobuf(tarfile.PAX_FORMAT)
    archive = io.BytesIO(member(".", tarfile.DIRTYPE, mode=0o755).tobuf() + header + bytes(10240))
    with pytest.raises(TooLargeError):
        unpack(archive, tmp_path / "t", LIMIT_BYTES)
    assert not (tmp_path / "t" / "holes").exists()


def test_an_archive_whose_links_outgrow_the_longest_path_makes_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    with contextlib.suppress(SandboxTransferError):
        hostile = io.BytesIO(nested_past_the_longest_path("victim"))
        unpack_folder(hostile, tmp_path / "t", limit_bytes=LIMIT_BYTES, limit_members=100)
    assert list((tmp_path / "victim").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "victim"]


def test_an_archives_members_are_bounded_too(tmp_path: Path) -> None:
    many = gzip.compress(stream(*(member(f"f{number}") for number in range(20))).getvalue())
    with pytest.raises(TooLargeError, match="10 files"):
        unpack_folder(io.BytesIO(many), tmp_path / "t", limit_bytes=LIMIT_BYTES, limit_members=10)
    unpack_folder(io.BytesIO(many), tmp_path / "u", limit_bytes=LIMIT_BYTES, limit_members=21)
    assert len(list((tmp_path / "u").iterdir())) == 20


PARTS = st.lists(st.sampled_from(["..", "a", "b", "."]), max_size=6).map("/".join)


@given(PARTS, PARTS)
def test_a_kept_link_resolves_inside_whatever_folders_there_are(name: str, destination: str) -> None:
    path = PurePosixPath(os.path.normpath(f"x/{name}".replace("..", "c")))
    if stays_inside(path, destination):
        resolved = os.path.normpath(f"/base/{path.parent}/{destination}")
        assert resolved == "/base" or resolved.startswith("/base/")


def test_packing_into_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1_000_000)
    reading, writing = os.pipe()
    os.close(reading)
    pack(tmp_path / "file", "file", os.fdopen(writing, "wb"))
