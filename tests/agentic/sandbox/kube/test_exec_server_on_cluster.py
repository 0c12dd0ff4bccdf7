"""The exec server in real pods: its image installs it, and commands and files go straight to the pod's address."""

from pathlib import Path

import pytest
from exec_server_rig import build
from kube_rig import Spaces, cluster_rig

from agentic.sandbox.kube.manifests import PROGRAM
from testbed.component import Machine
from testbed.images import Entry, ImageConfig, write_image
from testbed.layout import Layout
from testbed.tools import Toolbox

IMAGE = "localhost/agentic/exec-server:test"


@pytest.mark.cluster
async def test_commands_and_files_of_a_real_pod_go_by_its_server(spaces: Spaces, tmp_path: Path) -> None:
    entries = [Entry(str(Path(PROGRAM).parent.relative_to("/"))), Entry(PROGRAM.lstrip("/"), source=build())]
    write_image(tmp_path / "image.tar", IMAGE, entries, ImageConfig(entrypoint=[PROGRAM]))
    layout = Layout.of_this_machine()
    Machine(layout, Toolbox(layout)).containerd("images", "import", str(tmp_path / "image.tar"))
    (tmp_path / "file").write_bytes(bytes(range(256)) * 40_000)
    async with cluster_rig("pod", spaces.of("pod"), exec_server_image=IMAGE, start_timeout_seconds=50) as rig:
        sandbox = await rig.provider.acquire(rig.spec("one", workdir="/app"))
        result = await sandbox.exec("cat; pwd; cat /proc/1/comm; exit 3", stdin=b"input\n")
        assert (result.exit_code, result.text) == (3, "input\n/app\nexec-server\n")
        assert (await sandbox.exec("sleep 30", timeout_seconds=0.5)).timed_out
        await sandbox.upload(tmp_path / "file", "/app/file")
        await sandbox.download("/app/file", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == (tmp_path / "file").read_bytes()
        await sandbox.end_commands()
        assert (await sandbox.exec("echo alive")).text == "alive\n"
        await sandbox.release()
