"""A task's image for pods is the one that its local sandbox has."""

import json
from pathlib import Path

import pytest

from agentic.sandbox.rootfs import ImageConfig, RootfsStore
from testbed.access import ClusterAccess
from testbed.task_images import import_task_images

pytestmark = pytest.mark.cluster


def test_a_pod_starts_from_an_image_of_the_local_store(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> None:
    store = RootfsStore(tmp_path)
    base = store.ensure_base()
    with store.building() as folder:
        (folder / "app").mkdir()
        (folder / "app/code.py").write_text("print('mine')\n")
        layer = store.add_layer(folder, tuple(path.name for path in reversed(base.layers)))
    config = ImageConfig({**base.config.env, "GREETING": "hello"}, "/app")
    rootfs = store.rootfs((base.layers[0].name, layer), config)
    name = f"localhost/tasks/{namespace}:1"
    import_task_images(cluster.layout, {name: rootfs})
    container = {"name": "main", "image": name, "imagePullPolicy": "Never"}
    script = "python3 code.py && echo $GREETING"
    spec = {"restartPolicy": "Never", "containers": [{**container, "command": ["bash", "-c", script]}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "task"}, "spec": spec}
    cluster.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(pod))
    ends = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", f"--namespace={namespace}", ends, "pod/task", "--timeout=50s")
    assert cluster.kubectl("logs", f"--namespace={namespace}", "task") == "mine\nhello\n"
