"""The table of what runs: each component's command, how one sees that it is ready, and what it needs first.

Started in this order and stopped in reverse. Kubernetes itself is here, what the pipeline needs beside it in
controllers.py. A row's `prepare` writes its documents or applies its manifests, and may be run again.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from testbed import cgroups, node, pki
from testbed.component import Component, Machine
from testbed.controllers import CONTROLLERS
from testbed.errors import StartError
from testbed.fake_nodes import kwok_config
from testbed.images import Entry, ImageConfig, write_image
from testbed.probes import ask, get
from testbed.sandbox_image import make_sandbox_image

ETCD = "http://127.0.0.1:2379"
_UNPACED = ("--kube-api-qps=1000", "--kube-api-burst=2000")
"""By default a controller makes 20 objects a second, which a test of a thousand pods would mostly wait for."""


def _etcd(machine: Machine) -> Sequence[str]:
    peer = "http://127.0.0.1:2380"
    return (
        str(machine.tools.path("etcd")),
        f"--name={machine.layout.name}",
        f"--data-dir={machine.layout.state}/etcd",
        "--unsafe-no-fsync",  # nothing here is meant to survive the machine
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={machine.layout.name}={peer}",
        "--log-level=warn",
    )


def _kube_apiserver(machine: Machine) -> Sequence[str]:
    layout, folder = machine.layout, machine.layout.pki
    return (
        str(machine.tools.path("kube-apiserver")),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        f"--secure-port={layout.api_port}",
        f"--advertise-address={layout.host_ip}",
        f"--service-cluster-ip-range={layout.service_network}",
        f"--tls-cert-file={folder}/kube-apiserver.crt",
        f"--tls-private-key-file={folder}/kube-apiserver.key",
        f"--client-ca-file={folder}/ca.crt",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        f"--kubelet-client-certificate={folder}/kubelet-client.crt",
        f"--kubelet-client-key={folder}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder}/service-accounts.pub",
        f"--service-account-signing-key-file={folder}/service-accounts.key",
        f"--requestheader-client-ca-file={folder}/ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={folder}/front-proxy-client.crt",
        f"--proxy-client-key-file={folder}/front-proxy-client.key",
        "--profiling=false",
        "--allow-privileged=true",
    )


def _controller(name: str, *more: str) -> Callable[[Machine], Sequence[str]]:
    """The controller manager and the scheduler are started alike."""

    def command(machine: Machine) -> Sequence[str]:
        config = machine.layout.kubeconfig(name)
        configs = [f"--{kind}kubeconfig={config}" for kind in ("", "authentication-", "authorization-")]
        fixed = ("--leader-elect=false", "--bind-address=127.0.0.1", "--profiling=false", *_UNPACED)
        return (
            str(machine.tools.path(name)),
            *configs,
            *fixed,
            *(flag.format(pki=machine.layout.pki) for flag in more),
        )

    return command


def _has_default_account(machine: Machine) -> bool:
    """Without it no pod is admitted; the controller manager makes it last of what a new namespace gets."""
    return ask(machine, "/api/v1/namespaces/default/serviceaccounts/default") is not None


def _prepare_containerd(machine: Machine) -> None:
    layout = machine.layout
    layout.sockets.mkdir(parents=True, exist_ok=True)
    (layout.state / "cni").mkdir(parents=True, exist_ok=True)
    (layout.state / "containerd.toml").write_text(node.containerd_config(layout))
    (layout.state / "cni/10-bridge.conflist").write_text(json.dumps(node.network_config(layout)))


def _containerd_answers(machine: Machine) -> bool:
    try:
        machine.containerd("version")
    except StartError:
        return False
    return True


def _import_images(machine: Machine) -> None:
    folder = machine.layout.cache / "images"
    pause = folder / f"{machine.tools.folder('pause').name}.tar"
    if not pause.exists():
        program = Entry("pause", source=machine.tools.path("pause"))
        write_image(pause, node.PAUSE_IMAGE, [program], ImageConfig(entrypoint=["/pause"]))
    for image in (pause, make_sandbox_image(folder)):
        machine.containerd("images", "import", str(image))


def _kubelet(machine: Machine) -> Sequence[str]:
    layout = machine.layout
    return (
        str(machine.tools.path("kubelet")),
        f"--config={layout.state}/kubelet.json",
        f"--kubeconfig={layout.kubeconfig('kubelet')}",
        f"--root-dir={layout.state}/kubelet",
        f"--cert-dir={layout.state}/kubelet/pki",
        f"--hostname-override={layout.node}",
        f"--node-ip={layout.host_ip}",
    )


def _prepare_kubelet(machine: Machine) -> None:
    cgroups.make(machine.layout)
    (machine.layout.state / "kubelet").mkdir(parents=True, exist_ok=True)
    _write(machine, "kubelet.json", node.kubelet_config(machine.layout))


def _node_is_ready(machine: Machine) -> bool:
    """kubelet itself is asked too: what the API server holds may be of the one before it."""
    if get("http://127.0.0.1:10248/healthz") is None:
        return False
    answer = ask(machine, f"/api/v1/nodes/{machine.layout.node}")
    conditions = json.loads(answer)["status"].get("conditions", []) if answer else []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _prepare_kube_proxy(machine: Machine) -> None:
    _write(machine, "kube-proxy.json", node.kube_proxy_config(machine.layout))
    binding: dict[str, Any] = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "testbed-kube-proxy"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": pki.ACCOUNTS["kube-proxy"][0]}],
    }
    machine.kubectl("apply", "-f", "-", stdin=f"# YAML\n{json.dumps(binding)}")


def _kube_router(machine: Machine) -> Sequence[str]:
    return (
        str(machine.tools.path("kube-router")),
        f"--kubeconfig={machine.layout.kubeconfig(pki.ADMIN)}",
        f"--hostname-override={machine.layout.node}",
        "--run-firewall=true",  # network policies only: the bridge routes, kube-proxy serves services
        "--run-router=false",
        "--run-service-proxy=false",
        f"--service-cluster-ip-range={machine.layout.service_network}",
    )


def _kwok(machine: Machine) -> Sequence[str]:
    return (
        str(machine.tools.path("kwok")),
        f"--config={machine.layout.state}/kwok.yaml",
        f"--kubeconfig={machine.layout.kubeconfig(pki.ADMIN)}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",  # without a lease a fake node is lost after a minute
        "--server-address=127.0.0.1:10247",
    )


def _prepare_kwok(machine: Machine) -> None:
    stages = kwok_config(machine.tools.files("kwok"))
    (machine.layout.state / "kwok.yaml").write_text(yaml.safe_dump_all(stages))


def _write(machine: Machine, name: str, document: dict[str, Any]) -> None:
    (machine.layout.state / name).write_text(json.dumps(document, indent=1))


def _get(url: str) -> Callable[[Machine], bool]:
    return lambda machine: get(url) is not None


COMPONENTS: tuple[Component, ...] = (
    Component("etcd", _etcd, _get(f"{ETCD}/health"), tools=("etcd",)),
    Component(
        "kube-apiserver",
        _kube_apiserver,
        lambda machine: ask(machine, "/readyz") is not None,
        tools=("kube-apiserver", "kubectl"),
        prepare=lambda machine: pki.make(machine.layout),
    ),
    Component(
        "kube-controller-manager",
        _controller(
            "kube-controller-manager",
            "--service-account-private-key-file={pki}/service-accounts.key",
            "--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials=true",
            "--cluster-signing-cert-file={pki}/ca.crt",
            "--cluster-signing-key-file={pki}/ca.key",
            "--controllers=*,-cloud-node-lifecycle-controller,-service-lb-controller,-node-route-controller",
        ),
        _has_default_account,
        tools=("kube-controller-manager",),
    ),
    Component("kube-scheduler", _controller("kube-scheduler"), lambda machine: True, tools=("kube-scheduler",)),
    Component(
        "containerd",
        lambda machine: ("containerd", f"--config={machine.layout.state}/containerd.toml"),
        _containerd_answers,
        tools=("pause",),
        prepare=_prepare_containerd,
        complete=_import_images,
    ),
    Component("kubelet", _kubelet, _node_is_ready, tools=("kubelet",), prepare=_prepare_kubelet),
    Component(
        "kube-proxy",
        lambda machine: (str(machine.tools.path("kube-proxy")), f"--config={machine.layout.state}/kube-proxy.json"),
        _get("http://127.0.0.1:10256/healthz"),
        tools=("kube-proxy",),
        prepare=_prepare_kube_proxy,
    ),
    Component("kube-router", _kube_router, _get("http://127.0.0.1:20244/healthz"), tools=("kube-router",)),
    Component("kwok", _kwok, _get("http://127.0.0.1:10247/healthz"), tools=("kwok",), prepare=_prepare_kwok),
    *CONTROLLERS,
)
