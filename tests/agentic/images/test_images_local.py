"""Building real images and looking into them from sandboxes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentic.images.local import ImageResult, build_images
from agentic.images.settings import ImageSettings
from agentic.sandbox.base import Sandbox, SandboxProvider, SandboxSpec
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.rootfs import RootfsStore
from agentic.sandbox.settings import BubblewrapSandbox, UnsafeProcessSandbox

SANDBOX = BubblewrapSandbox()
FROM = "FROM agentic/base:local\n"


def make_task(root: Path, name: str, dockerfile: str, files: dict[str, str] | None = None) -> Path:
    environment = root / name / "environment"
    environment.mkdir(parents=True)
    (environment / "Dockerfile").write_text(FROM + dockerfile)
    for path, text in (files or {}).items():
        (environment / path).parent.mkdir(parents=True, exist_ok=True)
        (environment / path).write_text(text)
    return root / name


@pytest.fixture
def store(tmp_path: Path) -> RootfsStore:
    return open_store(tmp_path / "store", SANDBOX)


@pytest_asyncio.fixture
async def provider(store: RootfsStore) -> AsyncIterator[SandboxProvider]:
    provider = make_provider(SANDBOX, store)
    yield provider
    await provider.close()


async def build(store: RootfsStore, *tasks: Path, **settings: object) -> list[ImageResult]:
    return await build_images(tasks, store, ImageSettings(**settings), SANDBOX)  # type: ignore[arg-type]


async def enter(provider: SandboxProvider, store: RootfsStore, task: Path) -> Sandbox:
    rootfs = store.lookup(task / "environment")
    assert rootfs is not None
    return await provider.acquire(SandboxSpec("images-test", task.name, rootfs))


async def test_a_sandbox_sees_what_the_dockerfile_says(
    tmp_path: Path, store: RootfsStore, provider: SandboxProvider
) -> None:
    dockerfile = """ENV MODE=fast
WORKDIR /app
COPY repo/ .
COPY tool.sh conf*.txt /opt/tools/
COPY tool.sh /opt/tools
COPY tool.sh /renamed
RUN echo built in $MODE by $(id -u) > built && rm /etc/hosts && mkdir -p made/deep
COPY extra made/
RUN cat made/extra >> built
"""
    files = {
        "repo/a/x.py": "x",
        "tool.sh": "#!/bin/sh\necho tool",
        "conf1.txt": "1",
        "conf2.txt": "2",
        "extra": "extra",
    }
    task = make_task(tmp_path / "tasks", "t", dockerfile, files)
    (task / "environment/tool.sh").chmod(0o755)
    (task / "environment/repo/link").symlink_to("a/x.py")
    assert [result.status for result in await build(store, task)] == ["built"]
    sandbox = await enter(provider, store, task)
    listing = "pwd; cat built; ls /opt/tools; readlink link; ls /etc/hosts; ls -d made/deep; /renamed; echo $MODE"
    result = await sandbox.exec(listing)
    assert result.text.splitlines() == [
        "/app",
        "built in fast by 0",
        "extraconf1.txt",
        "conf2.txt",
        "tool.sh",
        "a/x.py",
        "made/deep",
        "tool",
        "fast",
    ]
    assert "/etc/hosts" in result.error_text
    assert (await sandbox.exec("touch new a/new && rm -r a && echo fine")).text == "fine\n"


async def test_folders_of_the_base_keep_their_modes(
    tmp_path: Path, store: RootfsStore, provider: SandboxProvider
) -> None:
    task = make_task(tmp_path, "t", "COPY f /tmp/\nCOPY f /opt/x/\n", {"f": "f"})
    await build(store, task)
    sandbox = await enter(provider, store, task)
    assert (await sandbox.exec("stat -c %a /tmp /root /opt/x")).text.split() == ["1777", "700", "755"]


async def test_a_broken_image_is_reported_and_the_others_are_built(tmp_path: Path, store: RootfsStore) -> None:
    tasks = [
        make_task(tmp_path, "good", "COPY f /f", {"f": "x"}),
        make_task(tmp_path, "ends", "RUN echo because >&2; exit 4"),
        make_task(tmp_path, "hangs", "RUN sleep 60"),
        make_task(tmp_path, "missing", "COPY nothing /x"),
        make_task(tmp_path, "hidden", "COPY f /bin/f", {"f": "x"}),
        make_task(
            tmp_path, "network", "RUN python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 1)'"
        ),
        make_task(tmp_path, "unknown", "VOLUME /x"),
        make_task(tmp_path, "runs", "RUN true"),
    ]
    (tmp_path / "foreign" / "environment").mkdir(parents=True)
    (tmp_path / "foreign" / "environment" / "Dockerfile").write_text("FROM ubuntu:24.04\n")
    (tmp_path / "empty").mkdir()
    lines: list[str] = []
    results = await build_images(
        [*tasks, tmp_path / "foreign", tmp_path / "empty"],
        store,
        ImageSettings(run_timeout_seconds=1),
        SANDBOX,
        lambda done, total, line: lines.append(f"{done}/{total} {line}"),
    )
    reasons = {result.task: (result.status, result.reason) for result in results}
    assert reasons.pop("good")[0] == reasons.pop("runs")[0] == "built"
    assert reasons.pop("network")[1].startswith("line 2: RUN ended with exit code 1")
    assert reasons == {
        "ends": ("failed", "line 2: RUN ended with exit code 4: because"),
        "hangs": ("failed", "line 2: RUN took longer than 1 s"),
        "missing": ("failed", "line 2: COPY found nothing called nothing"),
        "hidden": ("failed", "line 2: /bin/f lies where the base image shows this machine's own files"),
        "unknown": ("failed", "line 2: VOLUME is not supported, only FROM, COPY, RUN, WORKDIR, ENV, USER"),
        "foreign": (
            "failed",
            "line 1: FROM ubuntu:24.04 cannot be pulled here: local images start from agentic/base:local",
        ),
        "empty": ("failed", "empty has no environment/Dockerfile"),
    }
    assert lines[-1].startswith("10/10 ")
    assert all(result.digest for result in results if result.status == "built")


async def test_what_leads_out_of_the_environment_folder_is_refused(tmp_path: Path, store: RootfsStore) -> None:
    task = make_task(tmp_path, "t", "COPY out /x")
    (task / "environment" / "out").symlink_to("/etc/passwd")
    (result,) = await build(store, task)
    assert result.reason == "line 2: out leads out of the environment folder"


async def test_a_link_in_the_image_cannot_make_the_builder_write_on_the_host(
    tmp_path: Path, store: RootfsStore
) -> None:
    target = tmp_path / "host"
    target.mkdir()
    task = make_task(tmp_path, "t", "COPY repo/ /app/\nCOPY f /app/link/f", {"f": "x", "repo/y": "y"})
    (task / "environment" / "repo" / "link").symlink_to(target)
    await build(store, task)
    assert list(target.iterdir()) == []
    rootfs = store.lookup(task / "environment")
    assert rootfs is not None
    assert (rootfs.layers[0] / str(target / "f").lstrip("/")).read_text() == "x", "it lies inside, under the same name"


async def test_building_again_finds_everything_and_a_changed_line_reuses_the_lines_before(
    tmp_path: Path, store: RootfsStore
) -> None:
    slow = "RUN date +%s%N > /stamp\n"
    first, second = (
        make_task(tmp_path, "a", slow + "RUN echo a > /a"),
        make_task(tmp_path, "b", slow + "RUN echo b > /b"),
    )
    twin = make_task(tmp_path, "twin", slow + "RUN echo a > /a")
    results = await build(store, first, parallelism=1)
    again = await build(store, first, second, twin)
    assert [result.status for result in again] == ["cached", "built", "cached"]
    assert again[0].digest == results[0].digest == again[2].digest
    images = [store.lookup(task / "environment") for task in (first, second)]
    assert images[0] is not None
    assert images[1] is not None
    assert images[0].layers[1] == images[1].layers[1], "the layer of the RUN line that they share"


async def test_a_verifiers_own_image_is_built_too(tmp_path: Path, store: RootfsStore) -> None:
    task = make_task(tmp_path, "t", "COPY f /f", {"f": "x"})
    (task / "tests").mkdir()
    (task / "tests" / "Dockerfile").write_text(FROM + "WORKDIR /grade\n")
    results = await build(store, task)
    assert [result.task for result in results] == ["t", "t"]
    assert store.lookup(task / "tests") is not None


async def test_run_lines_need_isolation_and_copies_do_not(tmp_path: Path) -> None:
    settings = UnsafeProcessSandbox()
    store = open_store(tmp_path / "store", settings)
    tasks = [make_task(tmp_path, "copy", "COPY f /f", {"f": "x"}), make_task(tmp_path, "run", "RUN true")]
    copy, run = await build_images(tasks, store, ImageSettings(), settings)
    assert copy.status == "built"
    assert run.reason.startswith("line 2: RUN is executed in bubblewrap sandboxes only")


async def test_four_hundred_copied_images_take_seconds(tmp_path: Path, store: RootfsStore) -> None:
    tasks = [
        make_task(tmp_path, f"t{n}", "WORKDIR /app\nCOPY repo/ .", {f"repo/m{i}.py": f"{n} {i}\n" for i in range(4)})
        for n in range(400)
    ]
    started = time.process_time()
    results = await build(store, *tasks)
    assert {result.status for result in results} == {"built"}
    assert time.process_time() - started < 8


BUILDER = """
import asyncio, sys
from pathlib import Path
from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.sandbox.providers import open_store
from agentic.sandbox.settings import BubblewrapSandbox
store = open_store(Path(sys.argv[1]), BubblewrapSandbox())
tasks = sorted(Path(sys.argv[2]).iterdir())
print("begin", flush=True)
asyncio.run(build_images(tasks, store, ImageSettings(), BubblewrapSandbox()))
"""


@pytest.mark.parametrize("delay_seconds", [0.05, 0.3, 0.6])
async def test_a_builder_killed_at_any_moment_leaves_what_the_next_one_can_use(
    tmp_path: Path, store: RootfsStore, provider: SandboxProvider, delay_seconds: float
) -> None:
    for n in range(6):
        make_task(
            tmp_path / "tasks", f"t{n}", f"COPY f /f\nRUN echo {n} > /n && sleep 0.1\nCOPY f /g", {"f": "x" * 1000}
        )
    words = [sys.executable, "-c", BUILDER, str(store.root), str(tmp_path / "tasks")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=dict(os.environ)) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == b"begin\n"
        time.sleep(delay_seconds)
        builder.send_signal(signal.SIGKILL)
    tasks = sorted((tmp_path / "tasks").iterdir())
    results = await build(store, *tasks)
    assert {result.status for result in results} <= {"built", "cached"}
    assert list((store.root / "building").iterdir()) == []
    assert list(Path("/sys/fs/cgroup").rglob(f"agentic-build-images.{builder.pid}-*")) == []
    for number, task in enumerate(tasks):
        sandbox = await enter(provider, store, task)
        assert (await sandbox.exec("cat /n; wc -c < /f; wc -c < /g")).text.split() == [str(number), "1000", "1000"]
