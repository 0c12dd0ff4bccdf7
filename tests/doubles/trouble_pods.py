"""Pods and Jobs that get into one trouble each, for tests of what a real cluster says then."""

from typing import Any

BASE = "agentic/base:local"
LABELS = {"app.kubernetes.io/part-of": "agentic-rl"}
HOG = "held = [bytearray(1 << 20) for _ in range(4096)]"

type Body = dict[str, Any]


def pod(name: str, *, image: str = BASE, command: tuple[str, ...] = ("sleep", "600"), **more: Any) -> Body:
    """With one container, `main`; `container` and `spec` add to it."""
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": list(command)}
    spec: Body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **more.get("spec", {})}
    spec["containers"] = [{**container, **more.get("container", {})}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": LABELS}, "spec": spec}


def job(name: str, **spec: Any) -> Body:
    """Of one such pod."""
    template = {"spec": pod(name, spec=spec)["spec"]}
    metadata = {"name": name, "labels": LABELS}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def asking(**amounts: str) -> Body:
    named = {key.replace("_", "/"): amount for key, amount in amounts.items()}
    return {"resources": {"requests": named, "limits": named}}


def in_trouble(registry: str) -> dict[str, Body]:
    """The trouble's name to what gets into it."""
    missing = {"secretKeyRef": {"name": "hf-token", "key": "token"}}
    volume = {"name": "v", "secret": {"secretName": "buildkit-certs"}}
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "verl-nothing"}}
    mounted = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    found = {
        "image-missing": pod("a", image=f"{registry}/nothing:1"),
        "registry-unreachable": pod("b", image="registry.invalid/nothing:1"),
        "image-name-invalid": pod("c", image="Registry/UPPER:1"),
        "image-never-pulled": pod("d", image="agentic/nothing:1", container={"imagePullPolicy": "Never"}),
        "no-room-for-cpu": pod("e", container=asking(cpu="500")),
        "no-room-for-memory": pod("f", container=asking(memory="900Ti")),
        "no-room-for-gpu": pod("g", container=asking(**{"nvidia.com_gpu": "8"})),
        "nodes-not-selected": pod("h", spec={"nodeSelector": {"pool": "nowhere"}}),
        "secret-missing": pod("i", container={"env": [{"name": "T", "valueFrom": missing}]}),
        "config-map-missing": pod("k", container={"envFrom": [{"configMapRef": {"name": "settings"}}]}),
        "out-of-memory": pod("l", command=("python3", "-c", HOG), container=asking(memory="64Mi", cpu="500m")),
        "crash-loop": pod("m", command=("false",), spec={"restartPolicy": "Always"}),
        "program-missing": pod("n", command=("ray",)),
        "claim-missing": pod("o", container=mounted, spec={"volumes": [claim]}),
        "runs-as-root": pod("p", spec={"securityContext": {"runAsNonRoot": True}}),
        "deadline-exceeded": pod("q", spec={"activeDeadlineSeconds": 1}),
        "service-account-missing": job("r", restartPolicy="Never", serviceAccountName="rayclustertest"),
    }
    found["image-pull-secret-missing"] = pod("s", image=BASE, spec={"imagePullSecrets": [{"name": "acr-registry"}]})
    found["secret-missing (volume)"] = pod("t", container=mounted, spec={"volumes": [volume]})
    return found


def unbound_claim(name: str, storage_class: str | None = None) -> Body:
    spec: Body = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    spec |= {} if storage_class is None else {"storageClassName": storage_class}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
