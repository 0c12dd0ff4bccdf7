"""The Dockerfiles of `images/` are built by BuildKit from a base that is given, without a package index, and what they
make works: the steps as nobody in particular, in a container without a network whose root cannot be written."""

import re
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from exec_server_rig import build as build_exec_server

from agentic.sandbox.base_folder import PYTHON
from agentic.sandbox.kube.manifests import PROGRAM
from testbed.access import ClusterAccess
from testbed.component import Machine
from testbed.pipeline_image import push_base
from testbed.tools import Toolbox
from testbed.wheels import write_wheels

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "10001:10001"


@dataclass
class Workshop:
    """Builds and pushes by the command that people use, and runs what came of it."""

    cluster: ClusterAccess
    namespace: str
    base: str
    folder: Path

    @property
    def machine(self) -> Machine:
        return Machine(self.cluster.layout, Toolbox(self.cluster.layout))

    def build(self, name: str, arguments: Mapping[str, str], contexts: Mapping[str, Path]) -> str:
        """Its name in the registry; what the command said of digest and size is noted for `-s`."""
        registry = self.cluster.layout.registry
        where = ["--registry", f"{registry}/{self.namespace}", "--plain-http", registry, "--tag", "test"]
        given = [word for pair in arguments.items() for word in ("--arg", "=".join(pair))]
        given += [word for stage, folder in contexts.items() for word in ("--context", f"{stage}={folder}")]
        command = [sys.executable, "-m", "agentic.images", "build", name, *where, *given]
        command += ["--buildkit", f"tcp://{self.cluster.layout.builder}"]
        path = f"{self.machine.tools.folder('buildctl')}:/usr/bin:/bin"
        done = subprocess.run(command, cwd=ROOT, env={"PATH": path}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert re.search(rf"{name}:test: \S+@sha256:[0-9a-f]{{64}}, [0-9.]+ MB to pull", done.stdout), done.stdout
        sys.stdout.write(done.stdout)
        return f"{registry}/{self.namespace}/agentic-rl/{name}:test"

    def tool(self, name: str, inside: str) -> Path:
        """A folder that holds one program of the cluster's own, in place of the image that would bring it."""
        target = self.folder / f"context-{name}" / inside
        target.parent.mkdir(parents=True)
        target.hardlink_to(self.machine.tools.path(name))
        return self.folder / f"context-{name}"

    def run_alone(self, image: str, *command: str) -> str:
        """In a container with nothing but its loopback, as the image's user, on a root that cannot be written."""
        machine = self.machine
        machine.containerd("images", "pull", "--plain-http", image)
        options = ["--rm", "--read-only"]
        try:
            return machine.containerd("run", *options, image, f"test-{uuid.uuid4().hex[:8]}", *command)
        finally:
            machine.containerd("images", "remove", image)


@pytest.fixture
def workshop(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> Workshop:
    return Workshop(cluster, namespace, push_base(cluster.layout), tmp_path)


def requirements(*extras: str) -> list[str]:
    """As pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(need for extra in extras for need in project["optional-dependencies"][extra])]


def uv_folder(folder: Path) -> Path:
    """The installer, in place of the image that would bring it."""
    found = shutil.which("uv") or str(ROOT / ".bootstrap/bin/uv")
    folder.mkdir()
    shutil.copy(found, folder / "uv")
    return folder


def python_arguments(workshop: Workshop) -> dict[str, str]:
    return {"BASE": workshop.base, "PYTHON": f"{PYTHON}/bin/python3.12", "INDEX": "--no-index", "USER": NOBODY}


def test_the_steps_image_runs_as_anybody_without_a_network_on_a_root_that_cannot_be_written(workshop: Workshop) -> None:
    wheels = workshop.folder / "wheels"
    write_wheels(requirements("steps"), wheels)
    contexts = {
        "wheels": wheels,
        "uv": uv_folder(workshop.folder / "uv"),
        "buildkit": workshop.tool("buildctl", "usr/bin/buildctl"),
    }
    image = workshop.build("steps", python_arguments(workshop), contexts)
    shown = workshop.run_alone(image, "python", "-m", "steps.preflight", "--help")
    assert "usage: python -m steps.preflight" in shown
    assert "--inputs FILE" in shown
    packages = workshop.run_alone(image, "cat", "/opt/agentic/packages.txt").split()
    assert f"hera=={version('hera')}" in packages, "what is in it is listed in it, at the versions that are pinned"
    assert not [
        line for line in packages if line.partition("==")[0] in ("torch", "vllm", "verl", "ray", "transformers")
    ]
    assert "buildctl" in workshop.run_alone(image, "buildctl", "--version")
    refused = "import os, socket\ntry: socket.create_connection(('10.96.0.1', 443), 1)\nexcept OSError as e: print(e)\n"
    refused += "try: open('/app/x', 'w')\nexcept OSError as e: print(e)\nprint(os.getuid())"
    assert workshop.run_alone(image, "python", "-c", refused).splitlines() == [
        "[Errno 101] Network is unreachable",
        "[Errno 30] Read-only file system: '/app/x'",
        "10001",
    ]


def test_the_trainer_image_is_built_with_this_project_and_the_client_on_top_of_its_base(workshop: Workshop) -> None:
    """Its own packages are gigabytes that no base of the test brings: those of submitting stand for them."""
    wheels = workshop.folder / "wheels"
    write_wheels(requirements(), wheels)
    arguments = {**python_arguments(workshop), "EXTRA": "submit", "PINS": "cpu"}
    contexts = {
        "wheels": wheels,
        "uv": uv_folder(workshop.folder / "uv"),
        "buildkit": workshop.tool("buildctl", "usr/bin/buildctl"),
    }
    image = workshop.build("trainer", arguments, contexts)
    assert "usage: python -m steps.train" in workshop.run_alone(image, "python", "-m", "steps.train", "--help")
    assert "buildctl" in workshop.run_alone(image, "buildctl", "--version")


def test_a_pod_installs_the_exec_server_from_its_image(workshop: Workshop) -> None:
    """As a sandbox's init container does; that the program serves is seen in the tests of sandboxes."""
    stage = workshop.folder / "stage"
    stage.mkdir()
    shutil.copy(build_exec_server(), stage / "exec-server")
    image = workshop.build("exec-server", {}, {"build": stage})
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    install = {"name": "install", "image": image, "command": [PROGRAM, "install", "/shared/exec-server"], **shared}
    ask = {"name": "ask", "image": workshop.base, "command": ["/shared/exec-server", "nothing"], **shared}
    spec = {"restartPolicy": "Never", "initContainers": [install], "containers": [ask]}
    metadata = {"name": "exec-server", "namespace": workshop.namespace}
    volumes = [{"name": "shared", "emptyDir": {}}]
    workshop.cluster.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "volumes": volumes}}
    )
    where = f"--namespace={workshop.namespace}"
    workshop.cluster.kubectl(
        "wait", where, "--for=jsonpath={.status.phase}=Failed", "pod/exec-server", "--timeout=120s"
    )
    said = workshop.cluster.kubectl("logs", where, "exec-server", "--container=ask")
    assert said == 'exec-server: "nothing" is no command: say `serve`, `key` or `install`\n'


def test_tools_of_agents_are_where_a_sandbox_looks_for_them(workshop: Workshop) -> None:
    program = workshop.folder / "tools/some-agent-1.0/bin/some-agent"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho works\n")
    program.chmod(0o755)
    image = workshop.build("sandbox-tools", {"BASE": workshop.base}, {"tools": workshop.folder / "tools"})
    assert workshop.run_alone(image, "/opt/agentic/agents/some-agent-1.0/bin/some-agent") == "works\n"
    assert workshop.run_alone(image, "cat", "/opt/agentic/tools.txt") == "some-agent-1.0\n"
