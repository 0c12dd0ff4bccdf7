"""The proxy that injects faults passes everything else through unchanged."""

import asyncio
import shutil

import pytest
from faulty_proxy import FaultyProxy
from kube_api import KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import CONFIG_MAPS, PODS
from agentic.cluster.settings import KubeClientSettings
from agentic.cluster.watching import Watcher
from agentic.sandbox.kube.execution import ExecRequest
from agentic.sandbox.kube.pod_exec import PodExec, PodTarget


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="pods of the double need bubblewrap")
async def test_objects_watches_and_commands_pass_and_faults_hit_all_of_them() -> None:
    settings = KubeClientSettings(retry_seconds=20.0)
    async with (
        KubeApiServer() as server,
        FaultyProxy(Access(server.address), seed=3) as proxy,
        KubeClient(FixedCredentials(Access(proxy.address)), settings) as api,
        Watcher(api, CONFIG_MAPS) as watcher,
    ):
        await api.create(PODS, {**PODS.head("p"), "spec": {"containers": [{"name": "main"}]}})
        pod = PodExec(api, PodTarget("p"))
        data = bytes(range(256)) * 4000
        await asyncio.sleep(0.1)
        result = await pod.run(ExecRequest("cat", 20.0, stdin=data, output_limit_bytes=2 << 20))
        assert result.stdout == data
        proxy.error_rate, proxy.watch_expiry_rate = 0.3, 0.2
        names = [f"c{n}" for n in range(40)]
        await asyncio.gather(*(api.create(CONFIG_MAPS, CONFIG_MAPS.head(name)) for name in names))
        codes = await asyncio.gather(*(pod.run(ExecRequest(f"exit {n}", 20.0)) for n in range(10)))
        assert [result.exit_code for result in codes] == list(range(10))
        await watcher.wait_until(lambda all_: True if len(all_) == len(names) else None, timeout_seconds=20)
        assert {"429", "500", "503", "broken", "broken after"} <= set(proxy.injected)
        await pod.close()
