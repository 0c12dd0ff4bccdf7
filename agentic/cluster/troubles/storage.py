"""Troubles of volumes and disks."""

from agentic.cluster.troubles.kinds import MAKING, SAYING, SCHEDULING, Kind, Place, sign

BINDER = "kube-controller-manager 1.34, volume/persistentvolume/pv_controller.go"
SEEN = (*SCHEDULING, *MAKING)

KINDS = (
    Kind(
        "disk-category",
        "the node's instance type does not take this category of disk",
        "use a storage class of a category that it takes (gn5: cloud_ssd instead of cloud_essd), or shared storage",
        (sign(SEEN, r"InvalidInstanceType\.NotSupportDiskCategory", "Alibaba Cloud ECS API, error code"),),
    ),
    Kind(
        "claim-missing",
        "a pod names a claim that is not there",
        "create it (submit does), or correct its name in cluster.models, cluster.datasets or cluster.runs",
        (sign(SEEN, r'persistentvolumeclaim "[^"]+" not found', "kube-scheduler 1.34, plugins/volumebinding"),),
    ),
    Kind(
        "claim-lost",
        "a claim's volume is gone, and its data with it",
        "delete the claim, make it anew, and download again what was in it",
        (sign((Place.OBJECT, Place.EVENT), r"^Claim is Lost\b|^ClaimLost\b", BINDER),),
    ),
    Kind(
        "storage-class-missing",
        "a claim names no storage class that exists, and the cluster has no default one",
        "name one of `kubectl get storageclass` in the settings, or mark one as the default",
        (
            sign((Place.EVENT, Place.OBJECT), r'storageclass\.storage\.k8s\.io "[^"]*" not found', BINDER),
            sign((Place.EVENT,), r"no persistent volumes available for this claim and no storage class is set", BINDER),
        ),
    ),
    Kind(
        "volume-not-provisioned",
        "the storage class's driver could not make the volume",
        "read the driver's words in the message: size, access mode, quota or zone; is the driver installed?",
        (
            sign((Place.EVENT,), r"^ProvisioningFailed\b", BINDER),
            sign((Place.EVENT, Place.POD), r"didn't find available persistent volumes to bind", BINDER),
        ),
    ),
    Kind(
        "claim-not-shared",
        "a volume that one node at a time may mount is wanted by two",
        "use a storage class with ReadWriteMany (NAS, NFS, CephFS) for the claim",
        (
            sign(
                SEEN,
                r"Multi-Attach error for volume|with ReadWriteOncePod access mode already in-use",
                "kube-controller-manager 1.34, volume/attachdetach/reconciler.go",
            ),
        ),
    ),
    Kind(
        "claim-too-small",
        "a claim is smaller than what a run keeps in it",
        "make the claim larger (if its storage class allows expansion), or keep fewer checkpoints",
    ),
    Kind(
        "disk-full",
        "a volume or disk has no space left",
        "delete old runs and checkpoints, or make the claim larger",
        (
            sign(
                SAYING,
                r"^(?!.*shared memory).*No space left on device|no space left (?:on device|at )|Disk quota exceeded",
                "Linux, ENOSPC",
            ),
        ),
        transient=True,
    ),
    Kind(
        "volume-not-attached",
        "a volume could not be attached to the node",
        "read the driver's words in the message: zone, disk category, or attached elsewhere",
        (sign((Place.EVENT,), r"^FailedAttachVolume\b", "kube-controller-manager 1.34, volume/attachdetach"),),
        transient=True,
        is_general=True,
    ),
    Kind(
        "volume-not-mounted",
        "a volume could not be mounted in the pod",
        "read kubelet's words in the message; is the storage server reachable from the node?",
        (sign((Place.EVENT,), r"^FailedMount\b|^FailedMapVolume\b", "kubelet 1.34, kubelet/volumemanager"),),
        transient=True,
        is_general=True,
    ),
    Kind(
        "claim-pending",
        "a claim has no volume",
        "kubectl describe pvc NAME; with WaitForFirstConsumer it is bound only when a pod uses it",
        (
            sign((Place.OBJECT,), r"^Claim is Pending\b", "Kubernetes API, PersistentVolumeClaim status.phase"),
            sign(SCHEDULING, r"pod has unbound immediate PersistentVolumeClaims", "kube-scheduler 1.34, volumebinding"),
        ),
        transient=True,
        is_general=True,
    ),
)
