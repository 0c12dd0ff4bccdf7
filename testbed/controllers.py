"""The rows of what the pipeline needs beside Kubernetes itself: DNS, a registry, BuildKit, Argo Workflows, KubeRay's
operator.

They run as processes on the node, as administrator, and manage all namespaces. Rights of the pods that they start are
those of the namespace that a test makes: nothing here gives any.
"""

import json
import subprocess
import time
from collections.abc import Sequence

import yaml

from testbed import pki
from testbed.component import Component, Machine
from testbed.errors import StartError
from testbed.images import Entry, ImageConfig, write_image
from testbed.probes import ask, get
from testbed.tools import ARGO

ARGO_NAMESPACE = "argo"
ARGO_EXECUTOR = f"localhost/argoexec:{ARGO}"
ARGO_SERVER_PORT = 2746

_ARGO_KINDS = tuple(
    f"{plural}.argoproj.io"
    for plural in (
        *("clusterworkflowtemplates", "cronworkflows", "workflowartifactgctasks", "workfloweventbindings"),
        *("workflows", "workflowtaskresults", "workflowtasksets", "workflowtemplates"),
    )
)
_RAY_KINDS = ("rayclusters.ray.io", "rayjobs.ray.io", "rayservices.ray.io")
"""Without all of them the operator gives up after two minutes."""
_SERVED_SECONDS = 70.0
_SERVED_PAUSE_SECONDS = 0.1


def _apply(machine: Machine, *documents: dict[str, object]) -> None:
    """As YAML: kubectl takes a document that starts with a brace for JSON."""
    machine.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))


def _define(machine: Machine, kinds: Sequence[str], *where: str) -> None:
    """Returns once the API server serves the kinds: a controller that starts earlier gives up."""
    machine.kubectl("apply", "--server-side", "--force-conflicts", *where)
    # Not by `kubectl wait`, which gives up where a definition has no conditions yet.
    deadline = time.monotonic() + _SERVED_SECONDS
    while not all(_is_served(machine, kind) for kind in kinds):
        if time.monotonic() > deadline:
            raise StartError(f"the API server does not serve {', '.join(kinds)} after {_SERVED_SECONDS:.0f} s")
        time.sleep(_SERVED_PAUSE_SECONDS)


def _is_served(machine: Machine, kind: str) -> bool:
    plural, _, group = kind.partition(".")
    versions = json.loads(ask(machine, f"/apis/{group}") or b"{}").get("versions", [])
    return any(ask(machine, f"/apis/{version['groupVersion']}/{plural}?limit=1") is not None for version in versions)


def _prepare_coredns(machine: Machine) -> None:
    layout = machine.layout
    (layout.state / "Corefile").write_text(f""".:53 {{
  bind {layout.host_ip}
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    kubeconfig {layout.kubeconfig(pki.ADMIN)}
    ttl 1
  }}
  health 127.0.0.1:8085
}}
""")


def _prepare_registry(machine: Machine) -> None:
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": f"{machine.layout.state}/registry"}, "delete": {"enabled": True}},
        "http": {"addr": machine.layout.registry},
    }
    (machine.layout.state / "registry.yaml").write_text(yaml.safe_dump(config))


def _prepare_buildkitd(machine: Machine) -> None:
    layout = machine.layout
    (layout.state / "buildkitd.toml").write_text(f"""root = "{layout.state}/buildkit"
[grpc]
  address = ["tcp://{layout.builder}"]
[worker.containerd]
  enabled = false
[worker.oci]
  enabled = true
  networkMode = "host"  # commands of a build reach what listens on the node, such as a package index of a test
[registry."{layout.registry}"]
  http = true
""")


def _buildkitd(machine: Machine) -> Sequence[str]:
    return (str(machine.tools.path("buildkitd")), f"--config={machine.layout.state}/buildkitd.toml")


def _builds(machine: Machine) -> bool:
    command = [str(machine.tools.path("buildctl")), f"--addr=tcp://{machine.layout.builder}", "debug", "workers"]
    return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0


def _prepare_argo(machine: Machine) -> None:
    executor = machine.layout.cache / "images" / f"{machine.tools.folder('argoexec').name}.tar"
    if not executor.exists():
        user = Entry("etc/passwd", 0o644, data=b"root:x:0:0:root:/:/none\nargo:x:8737:8737:argo:/:/none\n")
        entries = [
            Entry("bin"),
            Entry("bin/argoexec", source=machine.tools.path("argoexec")),
            Entry("etc"),
            user,
            Entry("tmp", 0o1777),
        ]
        write_image(executor, ARGO_EXECUTOR, entries, ImageConfig(env={"PATH": "/bin"}, entrypoint=["argoexec"]))
    machine.containerd("images", "import", str(executor))
    crds = machine.tools.files("workflow-controller") / "full"
    _define(machine, _ARGO_KINDS, "-k", str(crds))
    config = {
        "executor": {"imagePullPolicy": "IfNotPresent", "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}}
    }
    _apply(
        machine,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ARGO_NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "workflow-controller-configmap", "namespace": ARGO_NAMESPACE},
            "data": {"config": yaml.safe_dump(config)},
        },
    )


def _workflow_controller(machine: Machine) -> Sequence[str]:
    # Asks itself again after a second; its own ten would be most of a short workflow's time.
    environment = ("env", "LEADER_ELECTION_DISABLE=true", "DEFAULT_REQUEUE_TIME=1s")
    return (
        *environment,
        str(machine.tools.path("workflow-controller")),
        f"--kubeconfig={machine.layout.kubeconfig(pki.ADMIN)}",
        f"--namespace={ARGO_NAMESPACE}",
        "--configmap=workflow-controller-configmap",
        f"--executor-image={ARGO_EXECUTOR}",
        "--executor-image-pull-policy=IfNotPresent",
    )


def _argo_server(machine: Machine) -> Sequence[str]:
    """Each caller acts with the rights of the token that it brings. For that the server finds the cluster by its
    environment, whatever an option says."""
    return (
        "env",
        f"KUBECONFIG={machine.layout.kubeconfig(pki.ADMIN)}",
        str(machine.tools.path("argo")),
        "server",
        f"--kubeconfig={machine.layout.kubeconfig(pki.ADMIN)}",
        f"--namespace={ARGO_NAMESPACE}",
        "--auth-mode=client",
        "--secure=false",
        f"--port={ARGO_SERVER_PORT}",
    )


def _prepare_ray_operator(machine: Machine) -> None:
    crds = machine.tools.files("ray-operator")
    _define(machine, _RAY_KINDS, "-f", str(crds))


def _ray_operator(machine: Machine) -> Sequence[str]:
    return (
        str(machine.tools.path("ray-operator")),
        f"--kubeconfig={machine.layout.kubeconfig(pki.ADMIN)}",
        "--enable-leader-election=false",
        "--metrics-addr=127.0.0.1:8080",
        "--health-probe-bind-address=127.0.0.1:8082",
        "--log-stdout-encoder=console",
    )


def _resolves(machine: Machine) -> bool:
    return get("http://127.0.0.1:8085/health") is not None


CONTROLLERS: tuple[Component, ...] = (
    Component(
        "coredns",
        lambda machine: (str(machine.tools.path("coredns")), "-conf", f"{machine.layout.state}/Corefile"),
        _resolves,
        tools=("coredns",),
        prepare=_prepare_coredns,
    ),
    Component(
        "registry",
        lambda machine: ("docker-registry", "serve", f"{machine.layout.state}/registry.yaml"),
        lambda machine: get(f"http://{machine.layout.registry}/v2/") is not None,
        prepare=_prepare_registry,
    ),
    Component(
        "buildkitd",
        _buildkitd,
        _builds,
        tools=("buildkitd", "buildctl", "rootlesskit"),
        prepare=_prepare_buildkitd,
    ),
    Component(
        "workflow-controller",
        _workflow_controller,
        lambda machine: get("http://127.0.0.1:6060/healthz") is not None,
        tools=("workflow-controller", "argoexec", "argo"),
        prepare=_prepare_argo,
    ),
    Component(
        "argo-server",
        _argo_server,
        lambda machine: get(f"http://127.0.0.1:{ARGO_SERVER_PORT}/") is not None,
    ),
    Component(
        "ray-operator",
        _ray_operator,
        lambda machine: get("http://127.0.0.1:8082/healthz") is not None,
        tools=("ray-operator",),
        prepare=_prepare_ray_operator,
    ),
)
