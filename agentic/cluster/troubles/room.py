"""Troubles of room: pods that no node takes, quotas, and GPUs that are not what they should be."""

from agentic.cluster.troubles.kinds import ENDING, MAKING, SCHEDULING, Kind, Place, sign

FIT = "kube-scheduler 1.34, plugins/noderesources/fit.go"
ADMIT = "kubelet 1.34, pkg/kubelet/lifecycle/predicate.go"
LESS = "a node's allocatable is less than its total (8 vCPU give about 7.9)"

KINDS = (
    Kind(
        "larger-than-any-node",
        "a pod that asks for more than any node of the cluster offers",
        f"ask for what the message says would fit, or add larger nodes; {LESS}",
    ),
    Kind(
        "no-room-for-gpu",
        "no node has so many GPUs free",
        "lower cluster.head.gpus and train.gpus_per_node, wait for other pods to end, or add GPU nodes",
        (
            sign(SCHEDULING, r"Insufficient [a-z0-9.-]+/(?:gpu|mig)", FIT),
            sign(SCHEDULING, r"^OutOf[a-z.]+/gpu\b", ADMIT),
        ),
        transient=True,
    ),
    Kind(
        "no-room-for-memory",
        "no node has so much memory free",
        f"lower cluster.head.memory or the step's share, or add nodes; {LESS}",
        (sign(SCHEDULING, r"Insufficient memory", FIT), sign(SCHEDULING, r"^OutOfmemory\b", ADMIT)),
        transient=True,
    ),
    Kind(
        "no-room-for-cpu",
        "no node has so many CPUs free",
        f"lower cluster.head.cpus or the step's share, or add nodes; {LESS}",
        (sign(SCHEDULING, r"Insufficient cpu", FIT), sign(SCHEDULING, r"^OutOfcpu\b", ADMIT)),
        transient=True,
    ),
    Kind(
        "no-room-for-disk",
        "no node has so much ephemeral storage free",
        "lower sandbox.scratch_mb, or give the nodes larger disks",
        (sign(SCHEDULING, r"Insufficient ephemeral-storage|^OutOfephemeral-storage\b", FIT),),
        transient=True,
    ),
    Kind(
        "no-room-for-pods",
        "every node has its highest number of pods",
        "lower rollout.concurrency, add nodes, or raise the kubelets' maxPods",
        (sign(SCHEDULING, r"Too many pods|^OutOfpods\b", FIT),),
        transient=True,
    ),
    Kind(
        "zone-conflict",
        "volume and node are in different zones",
        "put GPU nodes and volumes into one zone, or use shared storage (NAS) that all zones reach",
        (
            sign((*SCHEDULING, *MAKING), r"\bResourcesNotInSameZone\b", "Alibaba Cloud ECS API, error code"),
            sign(
                SCHEDULING,
                r"volume node affinity conflict|didn't match PersistentVolume's node affinity|"
                r"had no available volume zone",
                "kube-scheduler 1.34, plugins/volumebinding/binder.go and volumezone/volume_zone.go",
            ),
        ),
    ),
    Kind(
        "nodes-not-selected",
        "no node has the labels that the pod asks for",
        "label the nodes, or change the node selector in the settings",
        (
            sign(
                SCHEDULING,
                r"didn't match Pod's node affinity/selector",
                "kube-scheduler 1.34, plugins/nodeaffinity/node_affinity.go",
            ),
        ),
    ),
    Kind(
        "nodes-tainted",
        "the nodes have a taint that the pod does not tolerate",
        "add the toleration to the settings (GPU nodes often have one), or remove the taint",
        (
            sign(
                SCHEDULING,
                r"had untolerated taint|had taints that the pod didn't tolerate",
                "kube-scheduler 1.34, plugins/tainttoleration/taint_toleration.go",
            ),
        ),
    ),
    Kind(
        "nodes-closed",
        "the nodes take no new pods, or there are none",
        "kubectl uncordon NODE, or add nodes",
        (
            sign(
                SCHEDULING,
                r"node\(s\) were unschedulable|no nodes available to schedule pods",
                "kube-scheduler 1.34, scheduler.go and plugins/nodeunschedulable",
            ),
        ),
        transient=True,
    ),
    Kind(
        "node-not-ready",
        "a node is not ready, or is short of memory, disk or processes",
        "kubectl describe node NODE; restart or replace it",
        (
            sign((Place.OBJECT,), r"^Node Ready is (?:False|Unknown)\b", "kubelet 1.34, node conditions"),
            sign(
                (Place.OBJECT,), r"^Node (?:Memory|Disk|PID)Pressure is True\b", "kubelet 1.34, nodestatus/setters.go"
            ),
        ),
        transient=True,
    ),
    Kind(
        "quota-exceeded",
        "the namespace's quota has no room",
        "wait until others end, ask for less, or have the quota raised: kubectl describe quota",
        (sign(MAKING, r"exceeded quota: ", "kube-apiserver 1.34, admission/plugin/resourcequota/controller.go"),),
        transient=True,
    ),
    Kind(
        "limit-range",
        "the namespace allows no pod of this size",
        "ask for what the LimitRange allows, or have it changed: kubectl describe limitrange",
        (
            sign(
                MAKING,
                r"(?:maximum|minimum) \S+ usage per (?:Container|Pod|PersistentVolumeClaim) is",
                "kube-apiserver 1.34, plugin/pkg/admission/limitranger/admission.go",
            ),
        ),
    ),
    Kind(
        "queue-missing",
        "the LocalQueue that the run is to wait in is not there",
        "make it (docs/pipeline.md has one), or correct cluster.queue; kubectl get localqueues lists what is there",
    ),
    Kind(
        "queue-inactive",
        "the LocalQueue admits nothing",
        "read the message; mostly its ClusterQueue is missing or stopped: kubectl describe clusterqueue",
    ),
    Kind(
        "gpus-not-offered",
        "a node has GPUs, but its device plug-in offers none or fewer",
        "install or restart the NVIDIA device plug-in (or GPU operator) on the node",
        (
            sign(
                (*SCHEDULING, *ENDING),
                r"Allocate failed due to requested number of devices unavailable|"
                r"Allocate failed due to no healthy devices present",
                "kubelet 1.34, cm/devicemanager/manager.go",
            ),
        ),
        transient=True,
    ),
    Kind(
        "unschedulable",
        "no node takes the pod",
        "read in the message what each node lacks",
        (sign(SCHEDULING, r"^Unschedulable\b|^FailedScheduling\b", "kube-scheduler 1.34"),),
        transient=True,
        is_general=True,
    ),
)
