"""Kinds of Kubernetes objects by their address; the objects themselves are plain JSON."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

type JsonObject = dict[str, Any]
"""An object as the API server sends it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where its API lies."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """As in a Role, such as `pods` or `sandboxclaims.agents.kruise.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Of the collection, of one object, or of a part of it; percent-encoded."""
        root = f"/apis/{self.group}" if self.group else "/api"
        parts = [root, self.version, *(["namespaces", quote(namespace, safe="")] if self.is_namespaced else [])]
        parts += [self.plural, *([quote(name, safe="")] if name else []), *([subresource] if subresource else [])]
        return "/".join(parts)

    def head(self, name: str, **metadata: Any) -> JsonObject:
        """`apiVersion`, `kind` and `metadata` of a new object."""
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": {"name": name, **metadata}}


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", is_namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("", "v1", "events", "Event")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
JOBS = Resource("batch", "v1", "jobs", "Job")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
SERVICES = Resource("", "v1", "services", "Service")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", is_namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", is_namespaced=False)
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
WORKFLOWS = Resource("argoproj.io", "v1alpha1", "workflows", "Workflow")

APPLIED = (
    *(CONFIG_MAPS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, NETWORK_POLICIES, CLAIMS),
    *(SERVICES, DEPLOYMENTS, JOBS, RAY_CLUSTERS),
)
"""What the pipeline makes in a cluster, beside its sandboxes."""


def resource_of(body: JsonObject) -> Resource:
    """The address of an object that the pipeline makes. Raises KeyError for any other kind."""
    return {(kind.api_version, kind.kind): kind for kind in APPLIED}[body["apiVersion"], body["kind"]]


def name_of(body: JsonObject) -> str:
    return str(body.get("metadata", {}).get("name", ""))


def uid_of(body: JsonObject) -> str:
    return str(body.get("metadata", {}).get("uid", ""))


def version_of(body: JsonObject) -> str:
    return str(body.get("metadata", {}).get("resourceVersion", ""))
