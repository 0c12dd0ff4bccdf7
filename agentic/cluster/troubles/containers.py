"""Troubles of pods and containers: what keeps them from starting, and what ends them."""

from agentic.cluster.troubles.kinds import ENDING, MAKING, SAYING, SCHEDULING, STARTING, Kind, Place, sign

MEMORY_OF_TRAINING = (
    "raise cluster.{}.memory (55 Gi at least for 7B with offload), or lower train.rollouts_per_prompt or "
    "rollout.concurrency"
)
CONFIG = "kubelet 1.34, kuberuntime/kuberuntime_container.go"
STATUS = (Place.POD, Place.OBJECT)

KINDS = (
    Kind(
        "secret-missing",
        "a pod names a Secret, or a key in one, that is not there",
        "create the Secret with that key in the namespace, or correct its name in the settings",
        (
            sign(STARTING, r'\bsecret "[^"]+" not found|couldn\'t find key \S+ in Secret', CONFIG),
            sign((Place.EVENT,), r"references non-existent secret key", "kubelet 1.34, pkg/volume/secret/secret.go"),
        ),
    ),
    Kind(
        "config-map-missing",
        "a pod names a ConfigMap, or a key in one, that is not there",
        "create the ConfigMap in the namespace, or correct its name in the settings",
        (sign(STARTING, r'\bconfigmap "[^"]+" not found|couldn\'t find key \S+ in ConfigMap', CONFIG),),
    ),
    Kind(
        "service-account-missing",
        "the pods' ServiceAccount is not there",
        "create it with its Role (submit does), or correct cluster.service_account",
        (
            sign(
                MAKING,
                r'serviceaccount "[^"]+" not found',
                "kube-apiserver 1.34, plugin/pkg/admission/serviceaccount/admission.go",
            ),
        ),
    ),
    Kind(
        "runtime-class-missing",
        "the cluster has no such RuntimeClass, or the node's runtime does not know its handler",
        "install it (gVisor, Kata), or unset sandbox.runtime_class",
        (
            sign(
                (*MAKING, *STARTING),
                r'RuntimeClass "[^"]+" not found|no runtime for "[^"]+" is configured|failed to lookup RuntimeClass',
                "kube-apiserver 1.34, plugin/pkg/admission/runtimeclass; containerd, internal/cri",
            ),
        ),
    ),
    Kind(
        "runs-as-root",
        "the image would run as root, which the pod forbids",
        "set a user in the image or in the settings (sandbox.run_as_user)",
        (sign(STARTING, r"container has runAsNonRoot and image", "kubelet 1.34, kuberuntime/security_context.go"),),
    ),
    Kind(
        "program-missing",
        "the image does not have the program that the container is to run",
        "correct the image: it is another one than the settings expect, or an old build",
        (
            sign(
                STARTING,
                r"executable file not found in \$PATH|exec: \"[^\"]+\": (?:stat \S+: )?no such file or directory",
                "runc 1.1, libcontainer",
            ),
        ),
    ),
    Kind(
        "out-of-memory",
        "a container used more memory than it may, or its node ran out",
        "raise the share of what it names: cluster.light.memory or cluster.heavy.memory of a step's pod, of the "
        "trainer cluster.head.memory (55 Gi at least for 7B with offload), or lower train.rollouts_per_prompt or "
        "rollout.concurrency",
        (
            sign(ENDING, r"^OOMKilled\b", "containerd, task exit by the kernel's OOM killer"),
            sign(
                SAYING,
                r"killed due to the node running low on memory|ray\.exceptions\.OutOfMemoryError",
                "Ray 2.60, raylet and ray/exceptions.py",
            ),
            sign(
                SAYING, r"^MemoryError\b|^(?!.*shared memory).*\bCannot allocate memory\b", "Python 3.12; Linux, ENOMEM"
            ),
        ),
        transient=True,
        remedies={
            "head": MEMORY_OF_TRAINING.format("head"),
            "worker": MEMORY_OF_TRAINING.format("workers"),
            "step": "raise cluster.light.memory, the share of a light step",
            "step download-model": "raise cluster.heavy.memory, the share of a heavy step",
            "step build-images": "raise cluster.heavy.memory, or cluster.light.memory where sandboxes are pods",
            "sandbox": "raise sandbox.memory_mb and sandbox.request_memory_mb, or lower rollout.concurrency",
            "buildkitd": "raise cluster.buildkit.memory, or lower images.parallelism",
        },
    ),
    Kind(
        "shared-memory-full",
        "the container's /dev/shm is too small",
        "give the pod a larger /dev/shm (an emptyDir of medium Memory), or lower ray.object_store_bytes",
        (
            sign(
                SAYING,
                r"out of shared memory|unable to (?:open|allocate) shared memory|\bBus error\b",
                "PyTorch 2.11, torch/utils/data and aten MapAllocator",
            ),
        ),
    ),
    Kind(
        "evicted",
        "its node evicted the pod: it was short of memory or disk, or the pod over its own disk",
        "the message says of what; ask for it in the pod's requests, or give the nodes more",
        (sign(STATUS, r"^Evicted\b|The node was low on resource: ", "kubelet 1.34, eviction/helpers.go"),),
        transient=True,
    ),
    Kind(
        "preempted",
        "a pod of higher priority took its place",
        "give the run a PriorityClass of its own, or wait: the step is tried again",
        (
            sign(
                SCHEDULING,
                r"^PreemptionByScheduler\b|^Preempt(?:ed|ing)\b|[Pp]reempted by",
                "kube-scheduler 1.34, framework/preemption; kubelet 1.34, preemption.go",
            ),
        ),
        transient=True,
    ),
    Kind(
        "node-lost",
        "the pod's node stopped, was drained, or does not answer",
        "nothing, if it was maintenance: the step is tried again; else kubectl describe node NODE",
        (
            sign(
                STATUS,
                r"^NodeLost\b|^NodeShutdown\b|^DeletionByTaintManager\b|^DeletionByPodGC\b|^EvictionByEvictionAPI\b"
                r"|^TerminationByKubelet\b|[Ii]mminent node shutdown|^Terminated: Pod was terminated in response to",
                "kube-controller-manager 1.34, tainteviction and podgc; kubelet 1.34, nodeshutdown",
            ),
        ),
        transient=True,
    ),
    Kind(
        "pod-deleted",
        "somebody or something deleted the pod",
        "nothing: the step is tried again; if it happens often, look for who deletes pods (autoscaler, quota, people)",
        (sign((Place.OBJECT,), r"^pod deleted\b", "Argo 4.0.5, workflow/controller/operator.go"),),
        transient=True,
    ),
    Kind(
        "deadline-exceeded",
        "it took longer than it may",
        "raise cluster.step_deadline_seconds, cluster.train_deadline_seconds or cluster.deadline_seconds, then retry",
        remedies={"image-build": "raise images.build_timeout_seconds, then retry"},
        signs=(
            sign(
                (*STATUS, Place.EVENT),
                r"^DeadlineExceeded\b|longer than the specified deadline|exceeded its deadline"
                r"|Max duration limit exceeded",
                "kubelet 1.34, active_deadline.go; Job controller; Argo 4.0.5, workflow/controller/operator.go",
            ),
        ),
    ),
    Kind(
        "pod-network",
        "the node could not give the pod a network",
        "look at the node's network plug-in: kubectl -n kube-system get pods -o wide",
        (
            sign(
                (Place.EVENT, Place.OBJECT),
                r"^FailedCreatePodSandBox\b|^NetworkNotReady\b|network is not ready: |cni plugin not initialized",
                "kubelet 1.34, events/event.go; containerd, CRI",
            ),
        ),
        transient=True,
    ),
    Kind(
        "probe-failing",
        "a container does not pass its readiness or liveness probe",
        "read its log: kubectl logs POD; for a Ray head, is Ray up in it?",
        (sign((Place.EVENT,), r"^Unhealthy\b", "kubelet 1.34, prober/prober.go"),),
        transient=True,
        is_general=True,
    ),
    Kind(
        "container-not-configured",
        "the container's configuration is wrong",
        "read kubelet's words in the message",
        (sign(STARTING, r"^CreateContainerConfigError\b", CONFIG),),
        is_general=True,
    ),
    Kind(
        "container-not-started",
        "the container could not be made or started",
        "read the runtime's words in the message",
        (
            sign(
                STARTING,
                r"^(?:CreateContainerError|RunContainerError|StartError|ContainerCannotRun|PostStartHookError|"
                r"PreStartHookError)\b",
                CONFIG,
            ),
        ),
        is_general=True,
    ),
    Kind(
        "crash-loop",
        "the container ends again and again",
        "read its last words: kubectl logs POD -c CONTAINER --previous",
        (sign((Place.WAITING,), r"^CrashLoopBackOff\b", "kubelet 1.34, container/sync_result.go"),),
        transient=True,
        is_general=True,
    ),
)
