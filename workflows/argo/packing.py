"""The nodes of a large Workflow, which Argo keeps compressed so that the object stays below etcd's limit."""

import base64
import gzip
import json
from typing import Any

from agentic.cluster.resources import JsonObject
from workflows.errors import DocumentError

LARGEST_BYTES = 1024 * 1024
"""Where Argo's controller begins to compress; etcd refuses half as much again."""


def unpacked(workflow: JsonObject) -> JsonObject:
    """The same with its nodes in the open.

    Raises:
        DocumentError: Argo has put the nodes into a database, where only its server finds them.
    """
    status = workflow.get("status") or {}
    if status.get("offloadNodeStatusVersion") and not status.get("nodes"):
        raise DocumentError(
            f"Argo keeps the nodes of {workflow['metadata']['name']} in its database: set cluster.argo_server"
        )
    if status.get("nodes") or not status.get("compressedNodes"):
        return workflow
    nodes: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(status["compressedNodes"])))
    opened = {key: value for key, value in status.items() if key != "compressedNodes"}
    return {**workflow, "status": {**opened, "nodes": nodes}}


def packed(workflow: JsonObject) -> JsonObject:
    """The same, compressed if it has to be."""
    if size_of(workflow) <= LARGEST_BYTES:
        return workflow
    status = dict(workflow["status"])
    content = json.dumps(status.pop("nodes"), separators=(",", ":")).encode()
    status["compressedNodes"] = base64.b64encode(gzip.compress(content)).decode()
    return {**workflow, "status": status}


def size_of(workflow: JsonObject) -> int:
    """Bytes of the object as etcd holds a custom resource."""
    return len(json.dumps(workflow, separators=(",", ":"), ensure_ascii=False).encode())
