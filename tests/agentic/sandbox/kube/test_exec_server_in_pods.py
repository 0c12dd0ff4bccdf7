"""Providers whose sandboxes carry the exec server: how it gets there, who may reach it, and that commands use it."""

import copy
import shutil
import socket
from pathlib import Path

import pytest
from exec_server_rig import build
from kube_rig import KINDS, kube_settings, memory_rig

from agentic.cluster.resources import NETWORK_POLICIES, PODS, JsonObject
from agentic.sandbox.base import Sandbox
from agentic.sandbox.errors import SandboxLostError, SandboxStartError
from agentic.sandbox.kube.manifests import Resources, network_policy, prefetch_set, sandbox_pod_spec
from agentic.sandbox.kube.mutations import find_weakened
from agentic.sandbox.kube.server_exec import address_of

IMAGE = "example/exec-server:1"
SMALL = Resources(512, 0.5)
LEASE: JsonObject = {"metadata": {"name": "lease", "uid": "u"}}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_pod_gets_the_server_from_its_image_and_loses_no_isolation() -> None:
    plain = sandbox_pod_spec(kube_settings("pod"), "i:1", SMALL)
    spec = sandbox_pod_spec(kube_settings("pod", exec_server_image=IMAGE, exec_server_port=7171), "i:1", SMALL)
    (installing,), (container,) = spec["initContainers"], spec["containers"]
    assert (installing["image"], container["image"]) == (IMAGE, "i:1")
    assert container["command"] == ["/agentic/exec-server", "serve", "-listen", ":7171"]
    assert container["volumeMounts"][-1] == {"name": "exec-server", "mountPath": "/agentic", "readOnly": True}
    assert installing["securityContext"] == container["securityContext"] == plain["containers"][0]["securityContext"]
    assert set(spec) - set(plain) == {"initContainers"}
    assert "initContainers" not in plain


def test_only_the_trainers_pods_reach_the_port() -> None:
    settings = kube_settings("pod", exec_server_image=IMAGE, exec_server_clients=["role=trainer"])
    (rule,) = network_policy(settings, "r1", "lease", LEASE)["spec"]["ingress"]
    assert rule == {
        "from": [{"podSelector": {"matchLabels": {"role": "trainer"}}}],
        "ports": [{"protocol": "TCP", "port": 7070}],
    }
    assert network_policy(kube_settings("pod"), "r1", "lease", LEASE)["spec"]["ingress"] == []


def test_pulling_images_in_advance_needs_no_server() -> None:
    body = prefetch_set(kube_settings("pod", exec_server_image=IMAGE), "r1", "lease", ["a:1"], LEASE)
    spec = body["spec"]["template"]["spec"]
    assert [one["image"] for one in spec["containers"]] == ["a:1"]
    assert "initContainers" not in spec


def test_admission_is_checked_for_what_installs_the_server_too() -> None:
    wanted = sandbox_pod_spec(kube_settings("pod", exec_server_image=IMAGE), "i:1", SMALL)
    got = copy.deepcopy(wanted)
    for container in (*got["initContainers"], *got["containers"]):
        container["terminationMessagePath"] = "/dev/termination-log"
    assert find_weakened(wanted, got) == []
    got["initContainers"][0]["securityContext"]["privileged"] = True
    got["initContainers"].append({"name": "more", "image": "x"})
    assert find_weakened(wanted, got) == ["the container became privileged", "container more was added"]


def test_an_address_is_a_part_of_a_url() -> None:
    assert address_of({"status": {"podIP": "10.0.0.1"}}) == "10.0.0.1"
    assert address_of({"status": {"podIP": "fd00::1"}}) == "[fd00::1]"
    with pytest.raises(SandboxStartError, match="no address"):
        address_of({})


async def use(sandbox: Sandbox, folder: Path) -> None:
    assert (await sandbox.exec("cat; exit 3", stdin=b"input")).exit_code == 3
    assert (await sandbox.exec("")).exit_code == 0
    assert (await sandbox.exec(["sleep", "5"], timeout_seconds=0.2)).timed_out
    (folder / "file").write_bytes(bytes(range(256)) * 1000)
    await sandbox.upload(folder / "file", "/tmp/file")
    await sandbox.download("/tmp/file", folder / "back")
    assert (folder / "back").read_bytes() == (folder / "file").read_bytes()
    await sandbox.end_commands()
    assert (await sandbox.exec("cat /proc/1/comm")).text == "exec-server\n"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="pods of the double need bubblewrap")
async def test_every_kind_of_sandbox_runs_commands_by_its_server(tmp_path: Path) -> None:
    for kind in KINDS:
        async with memory_rig(kind, exec_server_image=IMAGE, exec_server_port=free_port()) as rig:
            assert rig.server is not None
            rig.server.pods.exec_server = build()
            sandbox = await rig.provider.acquire(rig.spec("one", workdir="/app"))
            (policy,) = (await rig.admin.list(NETWORK_POLICIES)).items
            assert len(policy["spec"]["ingress"]) == 1
            folder = tmp_path / kind
            folder.mkdir()
            await use(sandbox, folder)
            assert len([one for one in rig.server.requests if "/exec" in one]) == 1
            await sandbox.release()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="pods of the double need bubblewrap")
async def test_a_pod_that_is_gone_is_a_loss_with_its_reason() -> None:
    async with memory_rig("pod", exec_server_image=IMAGE, exec_server_port=free_port()) as rig:
        assert rig.server is not None
        rig.server.pods.exec_server = build()
        sandbox = await rig.provider.acquire(rig.spec("one"))
        (pod,) = await rig.pods()
        await rig.admin.delete(PODS, pod["metadata"]["name"])
        with pytest.raises(SandboxLostError, match="deleted"):
            await sandbox.exec("true")
