"""From settings to a client of the cluster."""

from pathlib import Path

import pytest
from kube_api import Fault, KubeApiServer
from kube_rig import kube_settings

from agentic.cluster.errors import ApiUnavailableError
from agentic.cluster.resources import PODS
from agentic.sandbox.providers import connect_cluster

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: a
contexts: [{{name: a, context: {{cluster: a, user: a, namespace: sandboxes}}}}]
clusters: [{{name: a, cluster: {{server: "{address}"}}}}]
users: [{{name: a, user: {{token: t}}}}]
"""


async def test_the_client_keeps_to_the_settings_of_sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with KubeApiServer() as server:
        path = tmp_path / "config"
        path.write_text(KUBECONFIG.format(address=server.address))
        monkeypatch.setenv("KUBECONFIG", str(path))
        server.faults.append(Fault(status=503, times=1000))
        api = await connect_cluster(kube_settings("pod", api={"retry_seconds": 0}))
        with pytest.raises(ApiUnavailableError):
            await api.list(PODS)
        await api.close()
        assert (api.namespace, len(server.requests)) == ("sandboxes", 1)
