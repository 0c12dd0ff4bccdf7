"""BuildKit for the runs of a namespace: Deployment, Service, configuration, and who may reach it.

Whoever reaches BuildKit runs what he likes as root of its pod. So either it asks for certificates (mutual TLS), or a
NetworkPolicy lets in the pods of this project alone, its sandboxes excepted. Privileged like the guide's, or rootless,
which needs no privilege but user namespaces and unconfined seccomp and AppArmor profiles.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from agentic.cluster.labels import (
    PART,
    PART_LABEL,
    ROLE_LABEL,
    ROLE_PREFETCH,
    ROLE_SANDBOX,
    shared_labels,
)
from agentic.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, NETWORK_POLICIES, SERVICES, JsonObject
from agentic.cluster.settings import BuildKitSettings, ClusterSettings, label_map, toleration_list

USER = 1000
"""Of the rootless image; another one needs another image."""

STORE = "/var/lib/buildkit"
SOCKET, ROOTLESS_SOCKET = "/run/buildkit/buildkitd.sock", f"/run/user/{USER}/buildkit/buildkitd.sock"
CONFIG_FILE, AUTHORITIES_FILE = "buildkitd.toml", "registry-ca.pem"
AUTHORITIES_FOLDER = "/etc/ssl/certs/agentic-rl"
CONFIG_ANNOTATION = "agentic-rl/config"
"""Digest of the configuration: another one makes another pod."""

CACHE_PART = 0.8
"""Of the builder's disk; the rest is for what is being built."""


@dataclass(frozen=True, slots=True)
class _Files:
    """What the builder reads: one ConfigMap, and another pod whenever it is another one."""

    config: str
    authorities: str | None

    @property
    def by_name(self) -> dict[str, str]:
        return {CONFIG_FILE: self.config, **({AUTHORITIES_FILE: self.authorities} if self.authorities else {})}

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.by_name).encode()).hexdigest()[:16]


def buildkit(
    settings: ClusterSettings, *, plain_http: Sequence[str] = (), authorities: str | None = None
) -> list[JsonObject]:
    """All of it, in the order in which it is applied. `plain_http` are registries without TLS, each as `host:port`;
    `authorities` those of registries that sign for themselves, as PEM."""
    files = _Files(_config(settings.buildkit, plain_http), authorities)
    policy = [_policy(settings)] if settings.buildkit.server_secret is None else []
    return [*policy, _config_map(settings, files), _deployment(settings, files), _service(settings)]


def address(settings: ClusterSettings) -> str:
    """Where pods of the namespace reach it."""
    return f"tcp://{settings.buildkit.name}:{settings.buildkit.port}"


def _head(settings: ClusterSettings) -> JsonObject:
    return {"namespace": settings.namespace, "labels": shared_labels(app=settings.buildkit.name)}


def _config(settings: BuildKitSettings, plain_http: Sequence[str]) -> str:
    lines = ["[worker.oci]", f'  maxUsedSpace = "{round(settings.cache_gib * CACHE_PART)}GB"']
    if settings.mirrors:
        mirrors = ", ".join(f'"{host}"' for host in settings.mirrors)
        lines += ['[registry."docker.io"]', f"  mirrors = [{mirrors}]"]
    for host in plain_http:
        lines += [f'[registry."{host}"]', "  http = true"]
    return "\n".join(lines) + "\n"


def _config_map(settings: ClusterSettings, files: _Files) -> JsonObject:
    return {**CONFIG_MAPS.head(settings.buildkit.name, **_head(settings)), "data": files.by_name}


def _deployment(settings: ClusterSettings, files: _Files) -> JsonObject:
    chosen, metadata = settings.buildkit, _head(settings)
    spec: JsonObject = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(chosen, files)],
        "volumes": _volumes(chosen, files),
    }
    if settings.image_pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": settings.image_pull_secret}]
    if chosen.node_selector:
        spec["nodeSelector"] = label_map(chosen.node_selector)
    if chosen.tolerations:
        spec["tolerations"] = toleration_list(chosen.tolerations)
    annotations = {CONFIG_ANNOTATION: files.digest}
    template = {"metadata": {"labels": metadata["labels"], "annotations": annotations}, "spec": spec}
    return {
        **DEPLOYMENTS.head(chosen.name, **metadata),
        "spec": {
            "replicas": 1,
            # Two would be two caches, and the Service would send half of a build to each.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": chosen.name}},
            "template": template,
        },
    }


def _container(chosen: BuildKitSettings, files: _Files) -> JsonObject:
    asks = ["buildctl", f"--addr={_socket(chosen)}", "debug", "workers"]
    probe = {"exec": {"command": asks}, "timeoutSeconds": 10}
    share = {"cpu": chosen.cpu, "memory": chosen.memory}
    mounts = [
        {"name": "config", "mountPath": "/etc/buildkit-config", "readOnly": True},
        {"name": "store", "mountPath": STORE},
    ]
    if chosen.server_secret is not None:
        mounts.append({"name": "certs", "mountPath": "/certs", "readOnly": True})
    if files.authorities:
        mounts.append({"name": "registry-ca", "mountPath": AUTHORITIES_FOLDER, "readOnly": True})
    return {
        "name": "buildkitd",
        "image": chosen.image,
        "imagePullPolicy": "IfNotPresent",
        "args": _arguments(chosen),
        "ports": [{"name": "buildkit", "containerPort": chosen.port}],
        **_trusting(files),
        "readinessProbe": {**probe, "initialDelaySeconds": 2, "periodSeconds": 10},
        "livenessProbe": {**probe, "initialDelaySeconds": 30, "periodSeconds": 30, "failureThreshold": 5},
        "resources": {"requests": dict(share), "limits": dict(share)},
        "securityContext": _privilege(chosen),
        "volumeMounts": mounts,
    }


def _trusting(files: _Files) -> JsonObject:
    if not files.authorities:
        return {}
    # The program looks for authorities in these folders, beside the image's one file.
    return {"env": [{"name": "SSL_CERT_DIR", "value": f"/etc/ssl/certs:{AUTHORITIES_FOLDER}"}]}


def _socket(chosen: BuildKitSettings) -> str:
    return f"unix://{ROOTLESS_SOCKET if chosen.rootless else SOCKET}"


def _arguments(chosen: BuildKitSettings) -> list[str]:
    words = [f"--config=/etc/buildkit-config/{CONFIG_FILE}", f"--root={STORE}", "--addr", _socket(chosen)]
    words += ["--addr", f"tcp://0.0.0.0:{chosen.port}"]
    if chosen.server_secret is not None:
        words += ["--tlscacert=/certs/ca.pem", "--tlscert=/certs/cert.pem", "--tlskey=/certs/key.pem"]
    return [*words, "--oci-worker-no-process-sandbox"] if chosen.rootless else words


def _privilege(chosen: BuildKitSettings) -> JsonObject:
    if not chosen.rootless:
        return {"privileged": True}
    return {
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "Unconfined"},
        "appArmorProfile": {"type": "Unconfined"},
    }


def _volumes(chosen: BuildKitSettings, files: _Files) -> list[JsonObject]:
    volumes: list[JsonObject] = [
        {"name": "config", "configMap": _one_file(chosen, CONFIG_FILE)},
        {"name": "store", "emptyDir": {"sizeLimit": f"{chosen.cache_gib}Gi"}},
    ]
    if chosen.server_secret is not None:
        volumes.append({"name": "certs", "secret": {"secretName": chosen.server_secret}})
    if files.authorities:
        volumes.append({"name": "registry-ca", "configMap": _one_file(chosen, AUTHORITIES_FILE)})
    return volumes


def _one_file(chosen: BuildKitSettings, name: str) -> JsonObject:
    return {"name": chosen.name, "items": [{"key": name, "path": name}]}


def _service(settings: ClusterSettings) -> JsonObject:
    port = {"name": "buildkit", "port": settings.buildkit.port, "targetPort": settings.buildkit.port}
    return {
        **SERVICES.head(settings.buildkit.name, **_head(settings)),
        "spec": {"type": "ClusterIP", "selector": {"app": settings.buildkit.name}, "ports": [port]},
    }


def _policy(settings: ClusterSettings) -> JsonObject:
    ours = {
        "matchLabels": {PART_LABEL: PART},
        "matchExpressions": [{"key": ROLE_LABEL, "operator": "NotIn", "values": [ROLE_SANDBOX, ROLE_PREFETCH]}],
    }
    allowed = {
        "from": [{"podSelector": ours}],
        "ports": [{"protocol": "TCP", "port": settings.buildkit.port}],
    }
    return {
        **NETWORK_POLICIES.head(settings.buildkit.name, **_head(settings)),
        "spec": {
            "podSelector": {"matchLabels": {"app": settings.buildkit.name}},
            "policyTypes": ["Ingress"],
            "ingress": [allowed],
        },
    }
