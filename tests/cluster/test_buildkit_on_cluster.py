"""The BuildKit that a namespace gets, as a real Deployment: ready when it builds, reached by name from where it is used
and by nobody else, by network policy or by certificates."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from build_site import build_site
from buildkit_image import USER, push_buildkit_image, push_rootless_buildkit_image

from agentic.cluster.labels import labels_of_run
from agentic.cluster.objects.buildkit import address, buildkit
from agentic.cluster.objects.image_build import CONTAINER, ImageBuild, image_build_job
from agentic.cluster.settings import ClusterSettings
from testbed import pki
from testbed.access import ClusterAccess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PATIENCE_SECONDS = 150.0
"""For what the cluster does beside other work."""

BUILDCTL = ("buildctl", "--wait", "--timeout=20")
"""As builds call it: a network policy opens the way to a new pod a moment after it runs."""


@pytest.fixture(scope="module")
def image(cluster: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> str:
    """It knows no other image to start from."""
    return push_buildkit_image(cluster, tmp_path_factory.mktemp("buildkit"))


class Site:
    """A namespace with a BuildKit of its own."""

    def __init__(self, cluster: ClusterAccess, namespace: str, image: str) -> None:
        self._cluster, self._namespace, self._image = cluster, namespace, image
        self._callers = 0

    def settings(self, **more: Any) -> ClusterSettings:
        chosen = {"image": self._image, "cpu": "100m", "memory": "256Mi", "cache_gib": 5, **more}
        return ClusterSettings.model_validate({"namespace": self._namespace, "buildkit": chosen})

    def start(self, settings: ClusterSettings) -> None:
        """Returns when it is ready, which its own probe says."""
        self._cluster.apply(*buildkit(settings, plain_http=[self._cluster.layout.registry]))
        waits = ("--for=condition=Available", "deployment/buildkitd", f"--timeout={PATIENCE_SECONDS:.0f}s")
        self._cluster.kubectl("wait", f"--namespace={self._namespace}", *waits)

    def asks(self, settings: ClusterSettings, labels: dict[str, str], *options: str) -> bool:
        """Whether a pod with these labels is answered, by the name that builds use."""
        self._callers += 1
        name = f"caller-{self._callers}"
        body = self.job(settings, name, [*BUILDCTL, f"--addr={address(settings)}", *options, "debug", "workers"])
        body["spec"]["template"]["metadata"]["labels"] = labels
        return self.runs(body)

    def job(self, settings: ClusterSettings, name: str, command: list[str]) -> dict[str, Any]:
        secret = "client" if settings.buildkit.server_secret else None
        build = ImageBuild(name, "r1", "0", name, command, self._image, 300, 600, tls_secret=secret)
        body: dict[str, Any] = image_build_job(settings, build)
        spec = body["spec"]["template"]["spec"]
        # The claim of the data sets is no part of this.
        spec["volumes"] = [volume for volume in spec["volumes"] if "persistentVolumeClaim" not in volume]
        kept = {volume["name"] for volume in spec["volumes"]}
        (container,) = spec["containers"]
        assert container["name"] == CONTAINER
        container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] in kept]
        return body

    def runs(self, job: dict[str, Any]) -> bool:
        """Whether the Job succeeds."""
        self._cluster.kubectl("create", "-f", "-", stdin=json.dumps(job))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = self._cluster.get("job", job["metadata"]["name"], f"--namespace={self._namespace}")
            ended = {one["type"] for one in found["status"].get("conditions") or () if one["status"] == "True"}
            if ended & {"Complete", "Failed"}:
                return "Complete" in ended
            assert time.monotonic() < deadline, f"{found['status']}"
            time.sleep(0.5)


@pytest.fixture
def site(cluster: ClusterAccess, namespace: str, image: str) -> Site:
    return Site(cluster, namespace, image)


BUILDS = labels_of_run("r1", {"type": "image-build", "agentic-rl/role": "image-build"})
SANDBOX = labels_of_run("r1", {"agentic-rl/role": "sandbox"})


def eventually(ask: Callable[[], bool], wanted: bool) -> bool:
    """A network policy holds a moment after its pods run."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while ask() is not wanted:
        if time.monotonic() > deadline:
            return False
    return True


def test_a_builder_without_certificates_answers_this_projects_pods_alone(site: Site) -> None:
    settings = site.settings()
    site.start(settings)
    assert eventually(lambda: site.asks(settings, BUILDS), True)
    assert eventually(lambda: site.asks(settings, {"app": "stranger"}), False)
    assert eventually(lambda: site.asks(settings, SANDBOX), False)


@pytest.fixture
def certificates(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> None:
    """Secrets `server` and `client` of one authority, and `other` of another."""
    for authority, names in (("ours", ("server", "client")), ("theirs", ("other",))):
        folder = tmp_path / authority
        folder.mkdir()
        pki.make_authority(folder)
        for name in names:
            pki.make_leaf(folder, name, ("buildkitd",) if name == "server" else ())
            files = [f"--from-file=ca.pem={tmp_path}/ours/ca.crt", f"--from-file=cert.pem={folder}/{name}.crt"]
            files += [f"--from-file=key.pem={folder}/{name}.key"]
            cluster.kubectl("create", f"--namespace={namespace}", "secret", "generic", name, *files)


@pytest.mark.usefixtures("certificates")
def test_a_builder_with_certificates_answers_who_shows_one_whatever_his_labels_are(site: Site) -> None:
    settings = site.settings(server_secret="server")
    site.start(settings)
    shows = ["--tlscacert=/agentic/tls/ca.pem", "--tlscert=/agentic/tls/cert.pem", "--tlskey=/agentic/tls/key.pem"]
    assert site.asks(settings, {"app": "stranger"}, *shows)
    assert not site.asks(settings, BUILDS)
    other = site.job(settings, "other", [*BUILDCTL, f"--addr={address(settings)}", *shows, "debug", "workers"])
    (certs,) = (one for one in other["spec"]["template"]["spec"]["volumes"] if one["name"] == "tls")
    certs["secret"]["secretName"] = "other"
    assert not site.runs(other)


@pytest.fixture(scope="module")
def rootless_image(cluster: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> str:
    return push_rootless_buildkit_image(cluster, tmp_path_factory.mktemp("rootless"))


def test_a_rootless_builder_builds_a_tasks_image_without_any_privilege(
    cluster: ClusterAccess, namespace: str, rootless_image: str, tmp_path: Path
) -> None:
    """The whole way: the step makes the builder sure, its Job calls it, a RUN line works, the image is pushed."""
    with build_site(cluster, namespace, tmp_path) as site:
        site.buildkit = {"image": rootless_image, "rootless": True, "cpu": "500m", "memory": "512Mi", "cache_gib": 5}
        site.add_task("one", "FROM agentic/base:local\nRUN id -u > /built-by && test -s /built-by\n")
        process = site.start(buildkit_address=None, buildkit_start_seconds=PATIENCE_SECONDS)
        assert process.wait(PATIENCE_SECONDS * 2) == 0, site.log.read_text()
        assert site.results()["one"]["status"] == "built", site.log.read_text()
        assert "@sha256:" in site.results()["one"]["image"]
    (pod,) = cluster.get("pods", f"--namespace={namespace}", "--selector=app=buildkitd")["items"]
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["runAsUser"] == USER
    assert "privileged" not in container["securityContext"]
    assert "capabilities" not in container["securityContext"]
