"""build-images as the workflow runs it, with a real BuildKit, a real registry and real Jobs: twenty-six tasks, two of
them broken, one flaky, two alike and one whose image somebody has pushed before; killed in the middle and started
again."""

import json
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from build_site import PARALLEL, RUN, Site, build_site

from agentic.cluster.objects.image_build import KEY_LABEL
from agentic.sandbox.images import open_images
from agentic.sandbox.rootfs import RootfsStore
from testbed.access import ClusterAccess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PLAIN, BROKEN, FLAKY, ALIKE, PUSHED = 20, ("broken-copy", "broken-run"), "flaky", ("alike-1", "alike-2"), "pushed"


class _Moody(BaseHTTPRequestHandler):
    """A package index that limits how often it is asked: the first time 429, then what was wanted."""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Index)
        server.asked += 1
        status = 429 if server.asked == 1 else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"a package\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Index(ThreadingHTTPServer):
    asked = 0


@pytest.fixture
def index(cluster: ClusterAccess) -> Iterator[_Index]:
    """Where builds reach it, and nothing else does."""
    server = _Index((cluster.host, 0), _Moody)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def site(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> Iterator[Site]:
    with build_site(cluster, namespace, tmp_path) as site:
        yield site


def fill(site: Site, index: _Index) -> None:
    for number in range(PLAIN):
        site.add_task(f"task-{number:02}", f"FROM agentic/base:local\nRUN echo {number} of {site.namespace} >/number\n")
    for name in ALIKE:
        site.add_task(name, "FROM agentic/base:local\nRUN echo the same >/number\n")
    site.add_task("broken-copy", "FROM agentic/base:local\nCOPY missing.txt /\n")
    site.add_task("broken-run", "FROM agentic/base:local\nRUN echo what is missing >&2; exit 3\n")
    address = f"http://{site.cluster.host}:{index.server_port}/package"
    fetch = f"from urllib.request import urlopen; open('/number', 'wb').write(urlopen('{address}').read())"
    site.add_task(FLAKY, f'FROM agentic/base:local\nRUN python3 -c "{fetch}"\n')
    site.add_task(PUSHED, "FROM agentic/base:local\nRUN echo never run >/number\n")


def push_by_hand(site: Site) -> str:
    """What somebody else put under a task's name; its digest."""
    folder = site.workspace / "by-hand"
    folder.mkdir()
    (folder / "Dockerfile").write_text(f"FROM {site.base_image}\nRUN echo by hand >/number\n")
    name = f"{site.cluster.layout.registry}/{site.namespace}/swe-bench/{PUSHED}:latest"
    where = [f"--local=context={folder}", f"--local=dockerfile={folder}", "--metadata-file", str(folder / "out.json")]
    output = f"--output=type=image,name={name},push=true,registry.insecure=true"
    buildctl = str(next(site.cluster.layout.cache.glob("tools/buildctl-*/buildctl")))
    address = f"--addr=tcp://{site.cluster.layout.builder}"
    subprocess.run([buildctl, address, "build", "--frontend=dockerfile.v0", *where, output], check=True, timeout=120)
    return str(json.loads((folder / "out.json").read_text())["containerimage.digest"])


def read_in_pod(site: Site, image: str, name: str) -> str:
    """What an image holds, seen from a pod that starts from it by digest."""
    cluster, where = site.cluster, f"--namespace={site.namespace}"
    cluster.kubectl("run", where, name, f"--image={image}", "--restart=Never", "--command", "--", "cat", "/number")
    cluster.kubectl("wait", where, "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=120s")
    return cluster.kubectl("logs", where, name).strip()


def test_a_task_set_gets_its_images_whatever_is_broken_flaky_or_killed(site: Site, index: _Index) -> None:
    fill(site, index)
    pushed = push_by_hand(site)
    first = site.start()
    site.watch(lambda: sum(row["status"] == "built" for row in site.results().values()) >= 5, 240)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = {name: row for name, row in site.results().items() if row["status"] == "built"}

    second = site.start()
    site.watch(lambda: second.poll() is not None, 300)
    printed = site.log.read_text()
    assert second.returncode == 0, printed

    results = site.results()
    assert len(results) == PLAIN + len(ALIKE) + len(BROKEN) + 2
    assert {name for name, row in results.items() if row["status"] == "failed"} == set(BROKEN), printed
    assert '"/missing.txt": not found' in results["broken-copy"]["reason"]
    assert "exit code: 3; it printed: what is missing" in results["broken-run"]["reason"]
    assert {row["status"] for name, row in results.items() if name not in BROKEN} == {"built", "found"}
    assert all(results[name]["image"] == row["image"] for name, row in before.items()), "nothing was built twice"

    attempts = Counter(job["metadata"]["labels"][KEY_LABEL] for job in site.jobs())
    assert len(attempts) == PLAIN + 1 + len(BROKEN) + 1, "one for each content, and none for what was pushed by hand"
    tries = Counter(attempts.values())
    assert tries[2] <= 1 + len(BROKEN), "a broken one is seen again by a new start, a flaky one tried again"
    assert set(tries) <= {1, 2}, attempts
    assert index.asked >= 2
    assert 1 < site.most_at_once <= PARALLEL

    assert results[PUSHED]["image"].endswith(pushed)
    assert results[ALIKE[0]]["image"] == results[ALIKE[1]]["image"]
    images = open_images(site.sandbox, RootfsStore(site.workspace / "images"), RUN)
    for name, holds in (("task-07", f"7 of {site.namespace}"), (FLAKY, "a package"), (PUSHED, "by hand")):
        image = images.find(name, site.workspace / "datasets/d/tasks" / name / "environment", None)
        assert image.name == results[name]["image"]  # type: ignore[union-attr]
        assert read_in_pod(site, results[name]["image"], name) == holds


def test_buildkit_that_pods_cannot_reach_is_told_before_anything_is_built(site: Site) -> None:
    """The node, where the step runs here, reaches what listens on its loopback; the pods that would build do not."""
    site.add_task("one", "FROM agentic/base:local\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        process = site.start(buildkit_address=address, buildkit_start_seconds=1)
        process.wait(timeout=240)
    printed = site.log.read_text()
    assert process.returncode == 75, printed
    assert f"BuildKit at {address} does not answer pods of {site.namespace}" in printed
    assert site.jobs() == []
