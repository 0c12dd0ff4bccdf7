"""BuildKit for the runs of a namespace: Deployment, Service, configuration, and who may reach it.

Whoever reaches BuildKit runs what he likes as root of its pod. So either it asks for certificates (mutual TLS), or a
NetworkPolicy lets in the pods of this project alone, its sandboxes excepted. Privileged like the guide's, or rootless,
which needs no privilege but user namespaces and unconfined seccomp and AppArmor profiles.
"""

import hashlib
from collections.abc import Sequence

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
ROOTLESS_SOCKET = f"/run/user/{USER}/buildkit/buildkitd.sock"
CONFIG_FILE = "buildkitd.toml"
CONFIG_ANNOTATION = "agentic-rl/config"
"""Digest of the configuration: another one makes another pod."""

CACHE_PART = 0.8
"""Of the builder's disk; the rest is for what is being built."""


def buildkit(settings: ClusterSettings, *, plain_http: Sequence[str] = ()) -> list[JsonObject]:
    """All of it, in the order in which it is applied. `plain_http` are registries without TLS, each as `host:port`."""
    config = _config(settings.buildkit, plain_http)
    policy = [_policy(settings)] if settings.buildkit.server_secret is None else []
    return [*policy, _config_map(settings, config), _deployment(settings, config), _service(settings)]


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


def _config_map(settings: ClusterSettings, config: str) -> JsonObject:
    return {**CONFIG_MAPS.head(settings.buildkit.name, **_head(settings)), "data": {CONFIG_FILE: config}}


def _deployment(settings: ClusterSettings, config: str) -> JsonObject:
    chosen, metadata = settings.buildkit, _head(settings)
    spec: JsonObject = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(chosen)],
        "volumes": _volumes(chosen),
    }
    if settings.image_pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": settings.image_pull_secret}]
    if chosen.node_selector:
        spec["nodeSelector"] = label_map(chosen.node_selector)
    if chosen.tolerations:
        spec["tolerations"] = toleration_list(chosen.tolerations)
    digest = hashlib.sha256(config.encode()).hexdigest()[:16]
    template = {"metadata": {"labels": metadata["labels"], "annotations": {CONFIG_ANNOTATION: digest}}, "spec": spec}
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


def _container(chosen: BuildKitSettings) -> JsonObject:
    # buildctl asks the socket of its own image's user, which it finds by itself.
    probe = {"exec": {"command": ["buildctl", "debug", "workers"]}, "timeoutSeconds": 10}
    share = {"cpu": chosen.cpu, "memory": chosen.memory}
    mounts = [
        {"name": "config", "mountPath": "/etc/buildkit-config", "readOnly": True},
        {"name": "store", "mountPath": STORE},
    ]
    if chosen.server_secret is not None:
        mounts.append({"name": "certs", "mountPath": "/certs", "readOnly": True})
    if chosen.ca_config_map is not None:
        mounts.append({"name": "registry-ca", "mountPath": "/etc/ssl/certs/agentic-rl", "readOnly": True})
    return {
        "name": "buildkitd",
        "image": chosen.image,
        "imagePullPolicy": "IfNotPresent",
        "args": _arguments(chosen),
        "ports": [{"name": "buildkit", "containerPort": chosen.port}],
        **_trusting(chosen),
        "readinessProbe": {**probe, "initialDelaySeconds": 2, "periodSeconds": 10},
        "livenessProbe": {**probe, "initialDelaySeconds": 30, "periodSeconds": 30, "failureThreshold": 5},
        "resources": {"requests": dict(share), "limits": dict(share)},
        "securityContext": _privilege(chosen),
        "volumeMounts": mounts,
    }


def _trusting(chosen: BuildKitSettings) -> JsonObject:
    if chosen.ca_config_map is None:
        return {}
    # The program looks for authorities in these folders, beside the image's one file.
    folders = "/etc/ssl/certs:/etc/ssl/certs/agentic-rl"
    return {"env": [{"name": "SSL_CERT_DIR", "value": folders}]}


def _arguments(chosen: BuildKitSettings) -> list[str]:
    socket = ROOTLESS_SOCKET if chosen.rootless else "/run/buildkit/buildkitd.sock"
    words = [f"--config=/etc/buildkit-config/{CONFIG_FILE}", f"--root={STORE}", "--addr", f"unix://{socket}"]
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


def _volumes(chosen: BuildKitSettings) -> list[JsonObject]:
    volumes: list[JsonObject] = [
        {"name": "config", "configMap": {"name": chosen.name}},
        {"name": "store", "emptyDir": {"sizeLimit": f"{chosen.cache_gib}Gi"}},
    ]
    if chosen.server_secret is not None:
        volumes.append({"name": "certs", "secret": {"secretName": chosen.server_secret}})
    if chosen.ca_config_map is not None:
        volumes.append({"name": "registry-ca", "configMap": {"name": chosen.ca_config_map}})
    return volumes


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
