"""What BuildKit is given by settings, beside what the published schemas say of it."""

from typing import Any

import pytest

from agentic.cluster.objects.buildkit import buildkit
from agentic.cluster.resources import JsonObject
from agentic.cluster.settings import BuildKitSettings, ClusterSettings

PEM = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"


def made(**given: Any) -> dict[str, JsonObject]:
    return {body["kind"]: body for body in buildkit(ClusterSettings(), **given)}


def pod(objects: dict[str, JsonObject]) -> JsonObject:
    template: JsonObject = objects["Deployment"]["spec"]["template"]
    return template


def test_authorities_of_registries_reach_the_builder_in_its_own_config_map() -> None:
    objects = made(authorities=PEM)
    assert objects["ConfigMap"]["data"]["registry-ca.pem"] == PEM
    spec = pod(objects)["spec"]
    (container,) = spec["containers"]
    (place,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "registry-ca")
    (volume,) = (one for one in spec["volumes"] if one["name"] == "registry-ca")
    assert volume["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    assert [item["key"] for item in volume["configMap"]["items"]] == ["registry-ca.pem"]
    assert {"name": "SSL_CERT_DIR", "value": f"/etc/ssl/certs:{place}"} in container["env"]


def test_without_any_the_image_s_own_authorities_stay_as_they_are() -> None:
    objects = made()
    assert set(objects["ConfigMap"]["data"]) == {"buildkitd.toml"}
    (container,) = pod(objects)["spec"]["containers"]
    assert "env" not in container
    assert {mount["name"] for mount in container["volumeMounts"]} == {"config", "store"}


@pytest.mark.parametrize("image", ["moby/buildkit:v0.32.2", "moby/buildkit:v0.32.2-rootless"])
def test_its_probes_ask_where_it_listens(image: str) -> None:
    """Whatever environment the image has, or lacks, for its client."""
    chosen = BuildKitSettings(image=image, rootless=image.endswith("-rootless"))
    objects = {body["kind"]: body for body in buildkit(ClusterSettings(buildkit=chosen))}
    (container,) = pod(objects)["spec"]["containers"]
    listens = [word for word in container["args"] if word.startswith("unix://")]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"][1] == f"--addr={listens[0]}"


@pytest.mark.parametrize("change", [{"authorities": PEM}, {"plain_http": ["10.0.0.5:5000"]}])
def test_what_the_builder_reads_at_its_start_makes_another_pod_when_it_changes(change: dict[str, Any]) -> None:
    digests = {pod(made(**given))["metadata"]["annotations"]["agentic-rl/config"] for given in ({}, change, {})}
    assert len(digests) == 2
