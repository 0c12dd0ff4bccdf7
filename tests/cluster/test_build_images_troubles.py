"""build-images where a registry asks who we are, and where a build's pod is taken away: real Jobs, a real BuildKit, and
registries of the test's own."""

import base64
import contextlib
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from build_site import Site, build_site
from buildkit_image import push_buildkit_image

from agentic.images.errors import RegistryRefusedError, RegistryTlsError
from agentic.images.reference import Reference
from agentic.images.registry import Registry
from agentic.images.registry_login import Logins
from agentic.images.settings import RegistrySettings
from testbed.access import ClusterAccess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PASSWORDS = "me:$2b$05$abcdefghijklmnopqrstuu2sM.EEHj4jPcCa5rwqJGg1PNBllkZXy\n"
"""As htpasswd writes them; the password is `a password`."""
LOGIN = base64.b64encode(b"me:a password").decode()


@contextlib.contextmanager
def private_registry(host: str, folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Debian's registry with a password, at a port of its own; its host and port."""
    with socket.create_server((host, 0)) as free:
        address = f"{host}:{free.getsockname()[1]}"
    (folder / "passwords").write_text(PASSWORDS)
    tls = {} if certificate is None else {"tls": {"certificate": str(certificate[0]), "key": str(certificate[1])}}
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": address, **tls},
        "auth": {"htpasswd": {"realm": "here", "path": str(folder / "passwords")}},
    }
    (folder / "registry.yaml").write_text(yaml.safe_dump(config))
    with (folder / "registry.log").open("w") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(folder / "registry.yaml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while not _answers(address):
            assert process.poll() is None, (folder / "registry.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def give_login(site: Site, host: str) -> None:
    """To the step by a file, and to its Jobs by a Secret."""
    config = json.dumps({"auths": {host: {"auth": LOGIN}}})
    site.login = site.workspace / "login"
    site.login.mkdir()
    (site.login / "config.json").write_text(config)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": "login", "namespace": site.namespace},
        "stringData": {".dockerconfigjson": config},
    }
    site.cluster.apply(secret)


def test_images_go_to_a_registry_with_a_password_by_the_secret_that_has_it(
    cluster: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    with private_registry(cluster.host, tmp_path) as host, build_site(cluster, namespace, tmp_path, host) as site:
        site.add_task("one", "FROM agentic/base:local\nRUN echo one >/number\n")
        refused = site.start()
        assert refused.wait(timeout=120) == 78, site.log.read_text()
        assert "refused (401" in site.log.read_text()
        assert "there are no credentials for it in" in site.log.read_text()

        give_login(site, host)
        unable = site.start()
        assert unable.wait(timeout=120) == 78, site.log.read_text()
        assert "401 Unauthorized" in site.results()["one"]["reason"], "the step may look, its Job may not push"

        built = site.start(registry={"secret": "login"})
        assert built.wait(timeout=120) == 0, site.log.read_text()
        assert site.results()["one"]["status"] == "built"
        assert site.results()["one"]["image"].startswith(f"{host}/swe-bench/one@sha256:")


def test_a_build_whose_pod_is_taken_away_is_tried_again(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> None:
    with build_site(cluster, namespace, tmp_path) as site:
        site.add_task("slow", "FROM agentic/base:local\nRUN sleep 15; echo slow >/number\n")
        step = site.start()
        where = (f"--namespace={namespace}", "--selector=type=image-build,agentic-rl/image!=buildkit")

        def running() -> list[str]:
            pods = cluster.get("pods", *where)["items"]
            return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]

        site.watch(lambda: bool(running()), 120)
        cluster.kubectl("delete", "pod", f"--namespace={namespace}", "--grace-period=0", "--force", *running())
        assert step.wait(timeout=150) == 0, site.log.read_text()
        assert len(site.jobs()) == 2
        assert site.results()["slow"]["status"] == "built"


def test_a_namespace_without_buildkit_gets_one_that_builds(
    cluster: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    with build_site(cluster, namespace, tmp_path) as site:
        image = push_buildkit_image(cluster, tmp_path)
        site.buildkit = {"image": image, "cpu": "200m", "memory": "512Mi", "cache_gib": 5}
        (site.add_task("one", "FROM scratch\nCOPY number /number\n") / "environment/number").write_text("one\n")
        step = site.start(buildkit_address=None, buildkit_start_seconds=150)
        assert step.wait(timeout=280) == 0, site.log.read_text()
        assert site.results()["one"]["status"] == "built"
        (container,) = site.jobs()[0]["spec"]["template"]["spec"]["containers"]
        assert "--addr=tcp://buildkitd:1234" in container["command"]
        assert cluster.get("deployment", "buildkitd", f"--namespace={namespace}")["status"]["availableReplicas"] == 1


async def test_a_real_registry_that_signs_for_itself_and_wants_a_password(
    cluster: ClusterAccess, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=registry"]
    files = ["-keyout", str(key), "-out", str(certificate), "-addext", f"subjectAltName=IP:{cluster.host}"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    ssl.create_default_context(cafile=str(certificate))
    with private_registry(cluster.host, tmp_path, (certificate, key)) as host:
        missing = Reference.parse(f"{host}/tasks/none:latest")
        login = Logins({host: {"auth": LOGIN}})
        async with Registry(RegistrySettings(ca_file=str(certificate)), login) as registry:
            assert await registry.digest_of(missing) is None
        async with Registry(RegistrySettings(), login) as registry:
            with pytest.raises(RegistryTlsError, match="not trusted"):
                await registry.digest_of(missing)
        wrong = Logins({host: {"username": "me", "password": "another"}}, source="config.json")
        async with Registry(RegistrySettings(ca_file=str(certificate)), wrong) as registry:
            with pytest.raises(RegistryRefusedError, match=r"the credentials in config\.json are not enough"):
                await registry.digest_of(missing)
