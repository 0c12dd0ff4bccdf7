"""Secrets for registries against the images that are pulled with them. Pure, but for the check that reads them."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.facts import Facts, ImageUse
from agentic.cluster.errors import NotFoundError
from agentic.cluster.resources import JsonObject, Resource
from agentic.cluster.troubles import Trouble, make_trouble

SECRETS = Resource("", "v1", "secrets", "Secret")
HUB = "docker.io"
HUBS = frozenset([HUB, "index.docker.io", "registry-1.docker.io"])
"""What Docker Hub is called in names and in Secrets."""
DATA_KEYS = {"kubernetes.io/dockerconfigjson": ".dockerconfigjson", "kubernetes.io/dockercfg": ".dockercfg"}
REGION = re.compile(
    r"(?<![a-z0-9])(?:cn|us|eu|ap|me|sa|ca|af|il|mx|europe|asia|africa|australia|northamerica|southamerica)"
    r"-[a-z]+(?:-[a-z]+)*(?:-?\d+)?(?![a-z0-9])"
)
"""A cloud's region within a host name, such as `cn-hangzhou`, `us-west-2` or `europe-west4`."""


async def check_pull_secrets(client: KubeClient, facts: Facts) -> list[Trouble]:
    """Each Secret is there, can be read by kubelet, and one of an image's is for its registry and region."""
    home = facts.cluster.namespace
    wanted = sorted({(use.namespace or home, name) for use in facts.images for name in use.secrets})
    secrets: dict[tuple[str, str], JsonObject | None] = {}
    for namespace, name in wanted:
        try:
            secrets[namespace, name] = await client.get(SECRETS, name, namespace=namespace)
        except NotFoundError:
            secrets[namespace, name] = None
    return list(judge_secrets(secrets, facts.images, home))


def judge_secrets(
    secrets: Mapping[tuple[str, str], JsonObject | None], images: Sequence[ImageUse], home: str
) -> Iterator[Trouble]:
    """By namespace and name; `home` is the namespace of images that name none. Pure."""
    entries: dict[tuple[str, str], set[str]] = {}
    for (namespace, name), secret in secrets.items():
        used_by = [use for use in images if name in use.secrets and (use.namespace or home) == namespace]
        where = f"secret {name}" if namespace == home else f"secret {name} in {namespace}"
        if secret is None:
            yield _missing(where, namespace, name, used_by)
            continue
        try:
            entries[namespace, name] = read_entries(secret)
        except ValueError as error:
            yield make_trouble("image-pull-secret-unusable", where, str(error))
    for use in images:
        namespace = use.namespace or home
        known = [(name, entries[namespace, name]) for name in use.secrets if (namespace, name) in entries]
        if known and len(known) == len(use.secrets):
            yield from _judge_image(use, known)


def _missing(where: str, namespace: str, name: str, images: Sequence[ImageUse]) -> Trouble:
    hosts = sorted({host_of(use.image) for use in images} - {HUB})
    options = f"--namespace={namespace} --docker-server={hosts[0] if hosts else 'HOST'} --docker-username=..."
    remedy = f"kubectl create secret docker-registry {name} {options}"
    return make_trouble("image-pull-secret-missing", where, "it is not in the namespace", remedy=remedy)


def read_entries(secret: JsonObject) -> set[str]:
    """The registries that a Secret has entries for, as they stand there. Raises ValueError when kubelet could not use
    it."""
    kind = str(secret.get("type"))
    if kind not in DATA_KEYS:
        raise ValueError(f"its type is {kind}")
    encoded = (secret.get("data") or {}).get(DATA_KEYS[kind], "")
    try:
        config: Mapping[str, Any] = json.loads(base64.b64decode(encoded, validate=True))
        return {str(one) for one in (config["auths"] if kind.endswith("json") else config)}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{DATA_KEYS[kind]} is no list of registries") from error


def is_for(entry: str, image: str) -> bool:
    """Whether kubelet takes an entry for an image: its host may have `*` in parts, and its path begins the image's."""
    host, _, path = entry.partition("://")[2].partition("/") if "://" in entry else entry.partition("/")
    path = re.sub(r"^v[12](?:/|$)", "", path).strip("/")
    if host_of(image) == HUB:
        return host in HUBS
    mine, theirs = host.split("."), host_of(image).split(".")
    is_host = len(mine) == len(theirs) and all(map(fnmatchcase, theirs, mine))
    rest = image.partition("/")[2]
    return is_host and (not path or rest == path or rest.startswith(f"{path}/"))


def host_of(image: str) -> str:
    """The registry's host in an image's name."""
    first, slash, _ = image.partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    return HUB if not is_host or first in HUBS else first


def _judge_image(use: ImageUse, secrets: Sequence[tuple[str, set[str]]]) -> Iterator[Trouble]:
    """Against all of its Secrets together."""
    host = host_of(use.image)
    if host == HUB or any(is_for(entry, use.image) for _, entries in secrets for entry in entries):
        return  # Docker Hub lets everybody pull, and images of nodes go by names like its own.
    where = ", ".join(f"secret {name}" for name, _ in secrets)
    hosts = sorted({_host(entry) for _, entries in secrets for entry in entries})
    said = f"it is for {', '.join(hosts) or 'no registry'}, but {use.setting} is {use.image}"
    region = _region(host)
    alike = [_region(one) for one in hosts if region and _region(one) and REGION.sub("", one) == REGION.sub("", host)]
    if alike:
        message = f"{said} (regions {alike[0]} and {region})"
        yield make_trouble("image-pull-secret-other-region", where, message)
    else:
        yield make_trouble("image-pull-secret-other-registry", where, said)


def _host(entry: str) -> str:
    return entry.partition("://")[2].partition("/")[0] if "://" in entry else entry.partition("/")[0]


def _region(host: str) -> str:
    found = REGION.search(host)
    return found.group() if found else ""
