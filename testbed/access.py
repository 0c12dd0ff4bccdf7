"""The running cluster as tests and benchmarks use it, from inside its network: kubectl, objects, accounts."""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import pki
from testbed.layout import Layout

HOST_VARIABLE = "TESTBED_HOST"
"""Set by `python -m testbed run`: the address under which pods reach a server that the command starts."""

type Rules = Sequence[Mapping[str, Sequence[str]]]
"""Of a Role."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The cluster as its administrator sees it."""

    layout: Layout

    @property
    def host(self) -> str:
        """Where pods reach what a test listens on."""
        return self.layout.host_ip

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig(pki.ADMIN)

    def kubectl(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """What it printed. Raises with its error otherwise."""
        command = ["kubectl", f"--kubeconfig={kubeconfig or self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"kubectl ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object or a list, as JSON."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return found

    def apply(self, *objects: dict[str, Any]) -> None:
        """Server-side, so that nothing of it gets lost in an annotation."""
        bundle = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(bundle))

    def install_crds(self, files: Iterable[Path]) -> None:
        """Returns once the API server serves them. May be repeated."""
        chosen = [word for path in sorted(files) for word in ("-f", str(path))]
        self.kubectl("apply", "--server-side", "--force-conflicts", *chosen)
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *chosen)

    def make_account(self, name: str, namespace: str, rules: "Rules", kubeconfig: Path) -> "Account":
        """A service account with a Role of these rules; its kubeconfig is written, with a token of an hour."""
        metadata = {"name": name, "namespace": namespace}
        group = "rbac.authorization.k8s.io"
        self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
            {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": list(rules)},
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            },
        )
        token = self.kubectl("create", "token", name, f"--namespace={namespace}").strip()
        pki.write_kubeconfig(self.layout, kubeconfig, token, namespace)
        return Account(name, kubeconfig)


@dataclass(frozen=True, slots=True)
class Account:
    """A service account that may do what its Role says and nothing else."""

    name: str
    kubeconfig: Path
