"""Files into and out of pods: exact whatever they hold, and harmless whatever the sandbox sends."""

import asyncio
import hashlib
import os
import resource
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from kube_api import KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import PODS
from agentic.sandbox.errors import SandboxLostError, SandboxTransferError
from agentic.sandbox.kube.execution import ExecRequest
from agentic.sandbox.kube.pod_exec import PodExec, PodTarget
from agentic.sandbox.kube.transfers import LARGE_KIB, Transfers
from agentic.sandbox.transfer import TooLargeError

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="pods of the double need bubblewrap")

LARGE_BYTES = 400 * 1000 * 1000
GIB = 1 << 30


@pytest_asyncio.fixture(params=["v5", "v4"])
async def pod(request: pytest.FixtureRequest) -> AsyncIterator[PodExec]:
    async with KubeApiServer() as server, KubeClient(FixedCredentials(Access(server.address))) as api:
        if request.param == "v4":
            server.pods.protocols = ("v4.channel.k8s.io",)
        await api.create(PODS, {**PODS.head("p1"), "spec": {"containers": [{"name": "main"}]}})
        while server.store.objects["pods", "default", "p1"].get("status", {}).get("phase") != "Running":
            await asyncio.sleep(0.01)
        pod = PodExec(api, PodTarget("p1"))
        yield pod
        await pod.close()


@pytest.fixture
def transfers() -> Transfers:
    return Transfers()


async def sh(pod: PodExec, line: str) -> str:
    result = await pod.run(ExecRequest(line, 30.0))
    assert result.exit_code == 0, result.error_text
    return result.text


async def test_every_byte_value_goes_in_and_out_with_its_mode(
    pod: PodExec, transfers: Transfers, tmp_path: Path
) -> None:
    source, back = tmp_path / "source", tmp_path / "deep" / "back"
    source.write_bytes(bytes(range(256)) * 5000 + b"\r\n\xff\xfe")
    source.chmod(0o751)
    await transfers.upload(pod, source, "/app/new/place/file")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert (await sh(pod, "sha256sum < /app/new/place/file; stat -c %a /app/new/place/file")).split() == [
        digest,
        "-",
        "751",
    ]
    await transfers.download(pod, "/app/new/place/file", back, limit_bytes=GIB)
    assert back.read_bytes() == source.read_bytes()
    assert back.stat().st_mode & 0o777 == 0o751


async def test_an_empty_file_and_an_empty_folder_are_something(
    pod: PodExec, transfers: Transfers, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "empty").mkdir(parents=True)
    (tmp_path / "tree" / "nothing").write_bytes(b"")
    await transfers.upload(pod, tmp_path / "tree", "/app/tree")
    await transfers.download(pod, "/app/tree", tmp_path / "back", limit_bytes=GIB)
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["empty", "nothing"]


async def test_links_stay_links_and_lead_nowhere_else(pod: PodExec, transfers: Transfers, tmp_path: Path) -> None:
    await sh(
        pod,
        "mkdir -p /app/t/sub; cd /app/t; echo x > sub/f; ln -s sub/f good; ln -s /etc/passwd out; ln -s ../../.. up",
    )
    await transfers.download(pod, "/app/t", tmp_path / "back", limit_bytes=GIB)
    assert str((tmp_path / "back" / "good").readlink()) == "sub/f"
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["good", "sub"]


HOSTILE = """
cat > /app/evil.py <<'END'
import io, sys, tarfile
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    folder = tarfile.TarInfo("."); folder.type = tarfile.DIRTYPE; folder.mode = 0o755
    archive.addfile(folder)
    member = tarfile.TarInfo(sys.argv[1]); member.size = 4
    archive.addfile(member, io.BytesIO(b"evil"))
END
mkdir -p /app/bin
printf '#!/bin/sh\\nexec python3 /app/evil.py "%s"\\n' "$NAME" > /app/bin/tar
chmod 755 /app/bin/tar
"""


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/k8s-transfer-escaped", "a/../../escaped"])
async def test_a_sandbox_with_a_tar_of_its_own_cannot_write_elsewhere(
    pod: PodExec, transfers: Transfers, tmp_path: Path, name: str
) -> None:
    assert (await pod.run(ExecRequest(HOSTILE, 30.0, env={"NAME": name}))).exit_code == 0
    swapped = Swapped(pod)
    with pytest.raises(SandboxTransferError, match="a path leads out of its folder"):
        await transfers.download(swapped, "/app", tmp_path / "a" / "back", limit_bytes=GIB)
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/k8s-transfer-escaped").exists()


class Swapped:
    """A sandbox whose PATH leads to programs of the untrusted side."""

    def __init__(self, inner: PodExec, path: str = "/app/bin:/usr/bin:/bin") -> None:
        self._inner, self._path = inner, path

    async def run(self, request: ExecRequest):  # type: ignore[no-untyped-def]
        return await self._inner.run(replace(request, env={"PATH": self._path}))

    async def end_commands(self) -> None:
        await self._inner.end_commands()

    async def close(self) -> None:
        await self._inner.close()


async def test_a_large_file_needs_no_python_inside(pod: PodExec, transfers: Transfers, tmp_path: Path) -> None:
    programs = "sh basename cat cut dd dirname du mkdir sha256sum tar tee"
    await sh(pod, f"mkdir /app/bin; for name in {programs}; do ln -s /usr/bin/$name /app/bin; done")
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(LARGE_KIB * 1024 + 4097))
    bare = Swapped(pod, "/app/bin")
    assert (await bare.run(ExecRequest("command -v python3", 30.0))).exit_code != 0
    await transfers.upload(bare, source, "/app/large")
    await transfers.download(bare, "/app/large", back, limit_bytes=GIB)
    assert back.read_bytes() == source.read_bytes()


AS_OLD = """
import ast, os, sys
ast.parse(sys.argv[-1], feature_version=(3, 6))
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Stands in for a Python that knows the syntax of 3.6 and no more."""


async def plant_python(pod: PodExec, script: str) -> None:
    planting = "mkdir -p /app/bin; cat > /app/bin/python3; chmod 755 /app/bin/python3"
    assert (await pod.run(ExecRequest(planting, 30.0, stdin=script.encode()))).exit_code == 0


async def bring_large_there_and_back(pod: PodExec, transfers: Transfers, folder: Path) -> None:
    source, back = folder / "source", folder / "back"
    source.write_bytes(os.urandom(LARGE_KIB * 1024 + 4097))
    await transfers.upload(Swapped(pod), source, "/app/large")
    await transfers.download(Swapped(pod), "/app/large", back, limit_bytes=GIB)
    assert back.read_bytes() == source.read_bytes()


async def test_an_old_python_hashes_a_large_file_too(pod: PodExec, transfers: Transfers, tmp_path: Path) -> None:
    real = "/usr/bin/python3"
    script = f"""#!/bin/sh
{real} -c '{AS_OLD}' {real} "$@"
ended=$?
echo $ended >> /app/ran
exit $ended
"""
    await plant_python(pod, script)
    await bring_large_there_and_back(pod, transfers, tmp_path)
    assert (await sh(pod, "cat /app/ran")).split() == ["0"] * 4, "asked and run for each way"


@pytest.mark.parametrize("script", ["echo SyntaxError >&2; exit 1", "exit 127"])
async def test_a_python_that_cannot_hash_is_not_asked_to(
    pod: PodExec, transfers: Transfers, tmp_path: Path, script: str
) -> None:
    await plant_python(pod, f"#!/bin/sh\necho asked >> /app/ran\n{script}\n")
    await bring_large_there_and_back(pod, transfers, tmp_path)
    assert (await sh(pod, "cat /app/ran")).split() == ["asked"] * 2


@pytest.mark.parametrize("python", ["exit 1", "head -c 9000000", "cat; echo x"])
async def test_what_changed_or_got_lost_under_way_is_noticed(
    pod: PodExec, transfers: Transfers, tmp_path: Path, python: str
) -> None:
    is_asked_first = 'case "$*" in *hexdigest*) ;; *) exit 0 ;; esac'
    await plant_python(pod, f"#!/bin/sh\n{is_asked_first}\n{python}\necho {'0' * 64} - >&2\n")
    await sh(pod, "head -c 9999999 /dev/urandom > /app/l")
    (tmp_path / "source").write_bytes(os.urandom(LARGE_KIB * 1024 + 4097))
    with pytest.raises(SandboxTransferError, match=r"cannot upload .*source to /app/large"):
        await transfers.upload(Swapped(pod), tmp_path / "source", "/app/large")
    with pytest.raises(SandboxTransferError, match="cannot download /app/l"):
        await transfers.download(Swapped(pod), "/app/l", tmp_path / "back", limit_bytes=GIB)


async def test_more_than_the_limit_is_refused_while_it_streams(
    pod: PodExec, transfers: Transfers, tmp_path: Path
) -> None:
    await sh(pod, "truncate -s 3G /app/sparse")
    with pytest.raises(TooLargeError, match="exceeds 1000000 bytes"):
        await transfers.download(pod, "/app/sparse", tmp_path / "back", limit_bytes=1_000_000)


async def test_nothing_comes_after_the_archive_beyond_the_limit(
    pod: PodExec, transfers: Transfers, tmp_path: Path
) -> None:
    await sh(pod, "mkdir -p /app/bin /app/d; echo hi > /app/d/f")
    longer = f'#!/bin/sh\n{shutil.which("tar")} "$@"\nexec cat /dev/zero\n'
    planted = await pod.run(ExecRequest("cat > /app/bin/tar; chmod 755 /app/bin/tar", 30.0, stdin=longer.encode()))
    assert planted.exit_code == 0
    with pytest.raises(TooLargeError, match="exceeds 1000000 bytes"):
        await asyncio.wait_for(transfers.download(Swapped(pod), "/app/d", tmp_path / "x", limit_bytes=1_000_000), 20)


async def test_what_is_not_there_says_so(pod: PodExec, transfers: Transfers, tmp_path: Path) -> None:
    with pytest.raises(SandboxTransferError, match="cannot download /app/nothing: no such file"):
        await transfers.download(pod, "/app/nothing", tmp_path / "x", limit_bytes=GIB)
    with pytest.raises(SandboxTransferError, match="cannot upload"):
        await transfers.upload(pod, tmp_path / "nothing", "/app/x")


async def test_a_file_that_cannot_be_looked_at_says_so(pod: PodExec, transfers: Transfers, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "long").symlink_to("x" * 256)
    for name, reason in (("loop", "Too many levels"), ("long", "File name too long"), ("none", "No such file")):
        with pytest.raises(SandboxTransferError, match=f"cannot upload .*{name} to /app/x: {reason}"):
            await transfers.upload(pod, tmp_path / name, "/app/x")


async def test_a_place_that_cannot_be_written_says_so(pod: PodExec, transfers: Transfers, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    with pytest.raises(SandboxTransferError, match="Read-only"):
        await transfers.upload(pod, tmp_path / "file", "/usr/new/file")


async def test_a_sandbox_lost_under_way_is_a_loss(pod: PodExec, transfers: Transfers, tmp_path: Path) -> None:
    await sh(pod, "truncate -s 3G /app/sparse")
    running = asyncio.create_task(transfers.download(pod, "/app/sparse", tmp_path / "back", limit_bytes=4 * GIB))
    while not (tmp_path / "back").exists():
        await asyncio.sleep(0.01)
    await pod.api.delete(PODS, "p1")
    with pytest.raises(SandboxLostError):
        await running


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pod", ["v5"], indirect=True)
async def test_400_megabytes_are_exact_and_never_in_memory(pod: PodExec, transfers: Transfers, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    with source.open("wb") as handle:
        for _ in range(LARGE_BYTES // 1_000_000):
            handle.write(os.urandom(1000) * 1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await transfers.upload(pod, source, "/app/large")
    await transfers.download(pod, "/app/large", back, limit_bytes=GIB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000
    assert back.stat().st_size == LARGE_BYTES
    with back.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    assert (await sh(pod, "sha256sum < /app/large")).split()[0] == digest
