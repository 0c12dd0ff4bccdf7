"""Volumes for the workflow's claims: folders of the node, as static volumes that wait for claims of these names.

There is no provisioner and no StorageClass here: claims ask for the class `""`. A volume names the claim that it is
for, so that claims of one test never bind the volumes of another, and whatever a run leaves can be read on this
machine. Volumes belong to no namespace: `remove_volumes` takes them away behind the test.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from agentic.cluster.settings import ClaimSettings
from testbed.access import ClusterAccess

LABEL = "testbed/namespace"


def make_volumes(
    cluster: ClusterAccess, namespace: str, claims: Collection[ClaimSettings], folder: Path
) -> dict[str, Path]:
    """Claim → its folder on the node, below `folder`. The claims themselves are made by whoever needs them."""
    folders = {claim.claim: folder / claim.claim for claim in claims}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    cluster.apply(*(volume(namespace, claim, folders[claim.claim]) for claim in claims))
    return folders


def volume(namespace: str, claim: ClaimSettings, folder: Path) -> dict[str, Any]:
    """Written by several pods at once, which a folder of the only node allows."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{claim.claim}", "labels": {LABEL: namespace}},
        "spec": {
            "capacity": {"storage": claim.size},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": claim.claim},
            "hostPath": {"path": str(folder), "type": "Directory"},
        },
    }


def remove_volumes(cluster: ClusterAccess, namespace: str) -> None:
    """The objects; the folders are their maker's."""
    cluster.kubectl("delete", "persistentvolumes", f"--selector={LABEL}={namespace}", "--wait=false")
