"""Secrets for registries against the images that are pulled with them. Pure, but for the check that reads them."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.facts import Facts, ImageUse
from agentic.cluster.errors import NotFoundError
from agentic.cluster.resources import JsonObject, Resource
from agentic.cluster.troubles import Trouble, make_trouble

SECRETS = Resource("", "v1", "secrets", "Secret")
DATA_KEYS = {"kubernetes.io/dockerconfigjson": ".dockerconfigjson", "kubernetes.io/dockercfg": ".dockercfg"}
REGION = re.compile(
    r"(?<![a-z0-9])(?:cn|us|eu|ap|me|sa|ca|af|il|mx|europe|asia|africa|australia|northamerica|southamerica)"
    r"-[a-z]+(?:-[a-z]+)*(?:-?\d+)?(?![a-z0-9])"
)
"""A cloud's region within a host name, such as `cn-hangzhou`, `us-west-2` or `europe-west4`."""


async def check_pull_secrets(client: KubeClient, facts: Facts) -> list[Trouble]:
    """Each Secret is there, can be read by kubelet, and is for the registry, and the region, of the images."""
    troubles: list[Trouble] = []
    for name in sorted({name for use in facts.images for name in use.secrets}):
        used_by = [use for use in facts.images if name in use.secrets]
        try:
            secret = await client.get(SECRETS, name, namespace=facts.cluster.namespace)
        except NotFoundError:
            secret = None
        troubles += judge_secret(name, secret, used_by)
    return troubles


def judge_secret(name: str, secret: JsonObject | None, images: Sequence[ImageUse]) -> Iterator[Trouble]:
    """One Secret, and the images that are pulled with it."""
    where = f"secret {name}"
    if secret is None:
        hosts = sorted({host_of(use.image) for use in images} - {""})
        server = hosts[0] if hosts else "HOST"
        remedy = f"kubectl create secret docker-registry {name} --docker-server={server} --docker-username=..."
        yield make_trouble("image-pull-secret-missing", where, "it is not in the namespace", remedy=remedy)
        return
    try:
        hosts_of_secret = read_hosts(secret)
    except ValueError as error:
        yield make_trouble("image-pull-secret-unusable", where, str(error))
        return
    for use in images:
        yield from _judge_image(where, hosts_of_secret, use)


def read_hosts(secret: JsonObject) -> set[str]:
    """The registries that a Secret has entries for. Raises ValueError when kubelet could not use it."""
    kind = str(secret.get("type"))
    if kind not in DATA_KEYS:
        raise ValueError(f"its type is {kind}")
    encoded = (secret.get("data") or {}).get(DATA_KEYS[kind], "")
    try:
        config: Mapping[str, Any] = json.loads(base64.b64decode(encoded, validate=True))
        entries = config["auths"] if kind.endswith("json") else config
        return {_host(str(one)) for one in entries}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{DATA_KEYS[kind]} is no list of registries") from error


def _host(entry: str) -> str:
    return entry.partition("://")[2].partition("/")[0] if "://" in entry else entry.partition("/")[0]


def host_of(image: str) -> str:
    """The registry's host in an image's name; empty for Docker Hub's short names."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""


def _judge_image(where: str, hosts: set[str], use: ImageUse) -> Iterator[Trouble]:
    host = host_of(use.image)
    if not host or host in hosts:
        return
    said = f"it is for {', '.join(sorted(hosts)) or 'no registry'}, but {use.setting} is {use.image}"
    region = _region(host)
    alike = [_region(one) for one in hosts if region and _region(one) and REGION.sub("", one) == REGION.sub("", host)]
    if alike:
        message = f"{said} (regions {alike[0]} and {region})"
        yield make_trouble("image-pull-secret-other-region", where, message)
    else:
        yield make_trouble("image-pull-secret-other-registry", where, said)


def _region(host: str) -> str:
    found = REGION.search(host)
    return found.group() if found else ""
