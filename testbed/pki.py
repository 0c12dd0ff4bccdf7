"""Certificates, tokens and kubeconfigs of a cluster, made by openssl; valid for a month and deleted with it."""

import csv
import io
import json
import secrets
import subprocess
from pathlib import Path

from testbed.errors import StartError
from testbed.layout import Layout

_DAYS = "30"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")

ADMIN = "admin"
ACCOUNTS = {
    ADMIN: ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kubelet": ("system:node:{node}", "system:nodes"),
    "kube-proxy": ("system:kube-proxy", ""),
}
"""Name of the kubeconfig → user and group. Only admin is above RBAC."""


def make(layout: Layout) -> None:
    """Does nothing where it is done; the token file is written last."""
    tokens = layout.pki / "tokens.csv"
    if tokens.exists():
        return
    layout.pki.mkdir(parents=True, exist_ok=True)
    layout.pki.chmod(0o700)
    make_authority(layout.pki)
    inside = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    addresses = ("127.0.0.1", layout.host_ip)
    make_leaf(layout.pki, "kube-apiserver", ("localhost", *inside), (*addresses, layout.service_ip))
    make_leaf(layout.pki, "kubelet", (layout.node, "localhost"), addresses, organization="system:nodes")
    make_leaf(layout.pki, "kubelet-client", organization="system:masters")
    make_leaf(layout.pki, "front-proxy-client")
    _openssl(layout.pki, "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "service-accounts.key")
    _openssl(layout.pki, "ec", "-in", "service-accounts.key", "-pubout", "-out", "service-accounts.pub")
    rows = io.StringIO()
    for number, (name, (user, group)) in enumerate(ACCOUNTS.items(), start=1):
        token = secrets.token_urlsafe(24)
        csv.writer(rows).writerow([token, user.format(node=layout.node), number, group])
        write_kubeconfig(layout, layout.kubeconfig(name), token)
    tokens.write_text(rows.getvalue())


def write_kubeconfig(layout: Layout, path: Path, token: str, namespace: str = "default") -> None:
    """JSON, which is YAML too."""
    cluster = {
        "server": f"https://127.0.0.1:{layout.api_port}",
        "certificate-authority": str(layout.pki / "ca.crt"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": layout.name,
        "clusters": [{"name": layout.name, "cluster": cluster}],
        "users": [{"name": "account", "user": {"token": token}}],
        "contexts": [
            {"name": layout.name, "context": {"cluster": layout.name, "user": "account", "namespace": namespace}}
        ],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))


def make_authority(folder: Path) -> None:
    extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
    added = [word for extension in extensions for word in ("-addext", extension)]
    names = ("-subj", "/CN=testbed", "-keyout", "ca.key", "-out", "ca.crt")
    _openssl(folder, "req", "-x509", *_NEW_KEY, "-days", _DAYS, *names, *added)


def make_leaf(
    folder: Path, name: str, names: tuple[str, ...] = (), addresses: tuple[str, ...] = (), *, organization: str = ""
) -> None:
    """A server's certificate when it has names, else a client's."""
    alternatives = [f"DNS:{text}" for text in names] + [f"IP:{text}" for text in addresses]
    subject = (f"/O={organization}" if organization else "") + f"/CN={name}"
    _openssl(folder, "req", *_NEW_KEY, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    extensions = f"extendedKeyUsage={'serverAuth' if names else 'clientAuth'}\n"
    if alternatives:
        extensions += f"subjectAltName={','.join(alternatives)}\n"
    (folder / f"{name}.ext").write_text(extensions)
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", _DAYS, "-extfile", f"{name}.ext")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise StartError(f"openssl {arguments[0]} ended with {done.returncode}: {lines[-1]}")
