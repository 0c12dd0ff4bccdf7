"""Creates a Workflow in the cluster that kubectl uses; the only part of the command line that talks to one."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from workflows.errors import ClusterUnreachableError, CommandError

TIMEOUT_SECONDS = 20
"""For one call; a laptop may be far from the cluster."""


def create(document: Mapping[str, Any]) -> str:
    """Create the Workflow; its name.

    Raises:
        ClusterUnreachableError: no cluster is configured, or none answers.
        CommandError: the API server refused it.
    """
    metadata = document["metadata"]
    try:
        _load_access()
        api = client.CustomObjectsApi()
        api.create_namespaced_custom_object(
            "argoproj.io",
            "v1alpha1",
            metadata["namespace"],
            "workflows",
            document,
            _request_timeout=TIMEOUT_SECONDS,
            field_validation="Strict",
        )
    except ApiException as error:
        raise _refusal(error, metadata) from error
    except (config.ConfigException, HTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ClusterUnreachableError(
            f"no Kubernetes cluster can be reached ({reason}): set KUBECONFIG, or run on this machine with "
            "python3 workflows/submit.py local"
        ) from error
    return str(metadata["name"])


def _load_access() -> None:
    """As kubectl finds a cluster: KUBECONFIG, else the default file, else the pod that this runs in.

    The client's own `load_config` tries the same, but prints about it.
    """
    default = Path("~/.kube/config").expanduser()
    path = os.environ.get("KUBECONFIG") or (str(default) if default.exists() else None)
    if path is None:
        config.load_incluster_config()
    else:
        config.load_kube_config(config_file=path)


def _refusal(error: ApiException, metadata: Mapping[str, Any]) -> CommandError | ClusterUnreachableError:
    if error.status == 404:
        return CommandError(f"the cluster has no Argo Workflows, or no namespace {metadata['namespace']}: install it")
    if error.status == 409:
        return CommandError(f"workflow {metadata['name']} exists: take another --run-id, or argo retry it")
    if error.status in (401, 403):
        return CommandError(f"the cluster refuses to create a Workflow in {metadata['namespace']} ({error.reason})")
    if error.status is not None and error.status >= 500:
        return ClusterUnreachableError(f"the cluster answered {error.status} {error.reason}: try again")
    return CommandError(f"the cluster refused the Workflow: {' '.join(str(error.body or error.reason).split())[:400]}")
