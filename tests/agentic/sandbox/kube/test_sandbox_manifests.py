"""What we make is isolated, accepted by the published schemas, and called what people expect."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kube_rig import CRDS, KINDS, kube_settings
from pydantic import ValidationError

from agentic.cluster.resources import JsonObject
from agentic.sandbox.kube import agent_sandbox, kruise
from agentic.sandbox.kube.manifests import Resources, lease_job, network_policy, sandbox_pod, sandbox_pod_spec
from agentic.sandbox.kube.mutations import find_weakened
from agentic.sandbox.kube.names import label_value, object_name, readable_name
from agentic.sandbox.kube.pool_size import PoolSize
from agentic.sandbox.kube.pools import Pool, PoolKey
from agentic.sandbox.kube.source import Order
from agentic.sandbox.settings import AgentSandbox, KruiseSandbox

LEASE: JsonObject = {"metadata": {"name": "lease", "uid": "u"}}
SMALL = Resources(512, 0.5)
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast, where it was built."""


class FixedOwner:
    """As much of an owner as manifests need."""

    run_id, name, lease = "r1", "lease", LEASE


def pool(image: str = "i:1") -> Pool:
    key = PoolKey("lease", image, SMALL, "astropy__astropy-12907")
    return Pool("astropy-astropy-12907", FixedOwner(), key, PoolSize(4))  # type: ignore[arg-type]


def order(image: str = "i:1") -> Order:
    return Order(FixedOwner(), "one-0123", "one", image, SMALL)  # type: ignore[arg-type]


def schema_of(name: str, version: str) -> Any:
    definition = yaml.load((CRDS / f"{name}.yaml").read_bytes(), LOADER)
    return next(one["schema"]["openAPIV3Schema"] for one in definition["spec"]["versions"] if one["name"] == version)


def test_a_sandboxs_pod_keeps_every_promise_of_isolation() -> None:
    spec = sandbox_pod(kube_settings("pod"), "p", "i:1", SMALL, {}, LEASE)["spec"]
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["seccompProfile"] == context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"] == {"memory": "512Mi", "cpu": "500m", "ephemeral-storage": "2048Mi"}
    assert spec["activeDeadlineSeconds"] == kube_settings("pod").lease_seconds
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert all("emptyDir" in volume for volume in spec["volumes"])


def test_what_settings_may_change_of_a_pod_shows() -> None:
    settings = kube_settings(
        "pod",
        runtime_class="gvisor",
        read_only_root=True,
        image_pull_secrets=["acr-registry"],
        capabilities=["SETUID"],
        node_selector=["pool=sandboxes"],
        tolerations=[{"key": "sandboxes", "operator": "Exists"}],
    )
    spec = sandbox_pod_spec(settings, "i:1", SMALL)
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["imagePullSecrets"] == [{"name": "acr-registry"}]
    assert spec["nodeSelector"] == {"pool": "sandboxes"}
    assert spec["tolerations"] == [{"key": "sandboxes", "operator": "Exists"}]
    context = spec["containers"][0]["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["SETUID"]}
    assert mounted(spec) == ["/tmp", "/logs", "/tests", "/solution"], "what Harbor writes to as well"


def mounted(spec: JsonObject) -> list[str]:
    return [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]


@pytest.mark.parametrize("of_the_run", [False, True])
def test_a_task_says_itself_whether_its_root_is_read_only(of_the_run: bool) -> None:
    settings = kube_settings("pod", read_only_root=of_the_run)
    for said in (None, False, True):
        spec = sandbox_pod_spec(settings, "i:1", Resources(64, 1.0, said, ("/app",)))
        is_read_only = of_the_run if said is None else said
        assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is is_read_only
        assert ("/app" in mounted(spec)) is is_read_only
        assert len(spec["volumes"]) == len(mounted(spec)) == len(set(mounted(spec)))


def test_sandboxes_that_may_write_elsewhere_are_of_another_class() -> None:
    classes = [
        Resources(64, 1.0),
        Resources(64, 1.0, True),
        Resources(64, 1.0, True, ("/app",)),
        Resources(64, 1.0, True, ("/app", "/data")),
    ]
    assert len({one.name for one in classes}) == len(classes)
    assert Resources(64, 1.0, False).name == Resources(64, 1.0).name == "64mb-1000m"


@pytest.mark.parametrize("user", [None, 1000])
def test_what_is_said_of_a_sandboxs_pod_is_said_of_the_leases_template_too(user: int | None) -> None:
    settings = kube_settings("pod", run_as_user=user)
    pod = sandbox_pod_spec(settings, "i:1", SMALL)
    template = lease_job(settings, "r1", "lease", "me", 0.0)["spec"]["template"]["spec"]
    assert pod["securityContext"] == template["securityContext"]
    assert context_of(pod) == context_of(template)
    assert set(limits_of(template)) == {"memory", "cpu", "ephemeral-storage"}
    assert pod["securityContext"].get("runAsUser") == user
    assert pod["securityContext"].get("runAsNonRoot") == (True if user else None)


def test_the_network_policy_allows_the_proxys_port_and_nothing_else() -> None:
    closed = network_policy(kube_settings("pod"), "r1", "lease", LEASE)["spec"]
    assert (closed["policyTypes"], closed["ingress"], closed["egress"]) == (["Ingress", "Egress"], [], [])
    (rule,) = network_policy(kube_settings("pod", proxy_port=8080), "r1", "lease", LEASE)["spec"]["egress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert rule["to"] == [{"podSelector": {"matchLabels": {"agentic-rl/role": "trainer", "agentic-rl/run": "r1"}}}]


def test_a_selector_that_names_a_run_means_that_run_and_not_the_sandboxes_own() -> None:
    named = ["agentic-rl/role=trainer", "agentic-rl/run=run-7"]
    settings = kube_settings(
        "pod", proxy_port=8080, proxy_selector=named, exec_server_image="e:1", exec_server_clients=named
    )
    spec = network_policy(settings, "server-name", "lease", LEASE)["spec"]
    peers = [{"podSelector": {"matchLabels": {"agentic-rl/role": "trainer", "agentic-rl/run": "run-7"}}}]
    assert [rule["to"] for rule in spec["egress"]] == [peers]
    assert [rule["from"] for rule in spec["ingress"]] == [peers]
    own = network_policy(kube_settings("pod", proxy_port=8080, proxy_selector=["app=x"]), "r1", "lease", LEASE)["spec"]
    assert own["egress"][0]["to"] == [{"podSelector": {"matchLabels": {"app": "x"}}}]


def test_what_openkruise_gets_fits_its_schemas() -> None:
    settings = kube_settings("kruise", pool={"by": "class"})
    assert isinstance(settings, KruiseSandbox)
    source = kruise.KruiseSource(None, settings)  # type: ignore[arg-type]
    claims, sandboxes, sets = source.kinds
    assert sandboxes.api_version == "agents.kruise.io/v1alpha1"
    body = kruise.sandbox_set(settings, pool(), sets)
    jsonschema.validate(body, schema_of("SandboxSet.agents.kruise.io", "v1alpha1"))
    assert body["spec"]["template"]["spec"]["restartPolicy"] == "Always", "an image taken in place ends the container"
    claim = kruise.sandbox_claim(settings, order("other:2"), pool(), claims, 1_800_000_000.0)
    jsonschema.validate(claim, schema_of("SandboxClaim.agents.kruise.io", "v1alpha1"))
    assert claim["spec"]["inplaceUpdate"] == {"image": "other:2"}
    assert claim["spec"]["shutdownTime"] == "2027-01-15T09:30:00Z"
    assert "inplaceUpdate" not in kruise.sandbox_claim(settings, order(), pool(), claims, 0.0)["spec"]


def test_openkruises_api_group_is_a_setting() -> None:
    source = kruise.KruiseSource(None, kube_settings("kruise", api_group="apps.kruise.io"))  # type: ignore[arg-type]
    assert {kind.api_version for kind in source.kinds} == {"apps.kruise.io/v1alpha1"}


def test_what_agent_sandbox_gets_fits_its_schemas() -> None:
    settings = kube_settings("agent-sandbox")
    assert isinstance(settings, AgentSandbox)
    claims, pools, templates = agent_sandbox.AgentSandboxSource(None, settings).kinds  # type: ignore[arg-type]
    for kind, body in (
        (claims, agent_sandbox.sandbox_claim(settings, order(), pool(), claims, 0.0)),
        (pools, agent_sandbox.warm_pool(pool(), pools)),
        (templates, agent_sandbox.sandbox_template(settings, pool(), templates)),
    ):
        assert body["apiVersion"] == "extensions.agents.x-k8s.io/v1beta1"
        jsonschema.validate(body, schema_of(f"{kind.kind}.extensions.agents.x-k8s.io", "v1beta1"))
    assert agent_sandbox.sandbox_claim(settings, order(), pool(), claims, 0.0)["spec"]["warmPoolRef"]


def test_agent_sandbox_has_no_pools_by_class() -> None:
    with pytest.raises(ValidationError, match=r"set sandbox\.pool\.by=task"):
        kube_settings("agent-sandbox", pool={"by": "class"})


MUTATIONS: dict[str, tuple[Any, str]] = {
    "sidecar": (lambda spec: spec["containers"].append({"name": "istio-proxy"}), "container istio-proxy was added"),
    "token": (lambda spec: spec.update(automountServiceAccountToken=True), "automountServiceAccountToken was set"),
    "token volume": (
        lambda spec: spec["volumes"].append({"name": "kube-api-access-x", "projected": {}}),
        "volume kube-api-access-x was added",
    ),
    "host network": (lambda spec: spec.update(hostNetwork=True), "hostNetwork was set"),
    "runtime class": (lambda spec: spec.pop("runtimeClassName"), "runtimeClassName was removed"),
    "lease": (lambda spec: spec.pop("activeDeadlineSeconds"), "activeDeadlineSeconds was removed"),
    "privileged": (lambda spec: context_of(spec).update(privileged=True), "the container became privileged"),
    "escalation": (
        lambda spec: context_of(spec).pop("allowPrivilegeEscalation"),
        "the container's allowPrivilegeEscalation was removed",
    ),
    "capabilities": (lambda spec: context_of(spec).pop("capabilities"), "capabilities were given back"),
    "limit": (lambda spec: spec["containers"][0].pop("resources"), "the limit on memory was removed"),
    "larger limits": (lambda spec: limits_of(spec).update(memory="900Gi"), "the limit on memory is 900Gi"),
    "more cpus": (lambda spec: limits_of(spec).update(cpu="64"), "the limit on cpu is 64"),
    "a device": (lambda spec: limits_of(spec).update({"nvidia.com/gpu": "1"}), "nvidia.com/gpu was given"),
    "seccomp": (
        lambda spec: context_of(spec).update(seccompProfile={"type": "Unconfined"}),
        "the container's seccompProfile is {'type': 'Unconfined'}",
    ),
    "no seccomp": (lambda spec: spec.pop("securityContext"), "the pod's seccompProfile was removed"),
    "proc": (lambda spec: context_of(spec).update(procMount="Unmasked"), "the container's procMount was set"),
    "apparmor": (
        lambda spec: context_of(spec).update(appArmorProfile={"type": "Unconfined"}),
        "the container's appArmorProfile was set",
    ),
    "root": (lambda spec: context_of(spec).update(runAsUser=0), "the container's runAsUser was set"),
    "sysctls": (lambda spec: spec["securityContext"].update(sysctls=[{"name": "a"}]), "the pod's sysctls was set"),
    "links": (lambda spec: spec.pop("enableServiceLinks"), "enableServiceLinks was removed"),
    "resolver": (lambda spec: spec.update(dnsPolicy="ClusterFirst"), "dnsPolicy is ClusterFirst"),
    "names": (lambda spec: spec.pop("dnsConfig"), "dnsConfig was removed"),
    "port": (lambda spec: spec["containers"][0].update(ports=[{"hostPort": 1}]), "the container's ports was set"),
    "secrets": (
        lambda spec: spec["containers"][0].update(envFrom=[{"secretRef": {"name": "cloud-key"}}]),
        "the container's envFrom was set",
    ),
    "environment": (lambda spec: spec["containers"][0].update(env=[{"name": "K"}]), "the container's env was set"),
    "command": (lambda spec: spec["containers"][0].update(args=["x"]), "the container's args was set"),
    "hook": (lambda spec: spec["containers"][0].update(lifecycle={"a": 1}), "the container's lifecycle was set"),
    "init container": (lambda spec: spec.update(initContainers=[{"name": "i"}]), "container i was added"),
    "claim": (
        lambda spec: spec["volumes"].append({"name": "x", "persistentVolumeClaim": {"claimName": "a"}}),
        "volume x was added",
    ),
    "driver": (lambda spec: spec["volumes"].append({"name": "x", "csi": {"driver": "d"}}), "volume x was added"),
    "host path": (
        lambda spec: spec["volumes"][0].update(emptyDir=None, hostPath={"path": "/"}),
        "volume writable-0 is hostPath",
    ),
    "no size limit": (
        lambda spec: spec["volumes"][0].update(emptyDir={}),
        "the limit of volume writable-0 is None",
    ),
    "mount": (
        lambda spec: spec["containers"][0]["volumeMounts"].append({"name": "writable-0", "mountPath": "/root"}),
        "writable-0 was mounted at /root",
    ),
    "longer lease": (lambda spec: spec.update(activeDeadlineSeconds=10**8), "activeDeadlineSeconds is 100000000"),
    "what nobody knows": (lambda spec: spec.update(newFeature={"on": True}), "newFeature was set"),
}


def limits_of(spec: JsonObject) -> JsonObject:
    found: JsonObject = spec["containers"][0]["resources"]["limits"]
    return found


def context_of(spec: JsonObject) -> JsonObject:
    found: JsonObject = spec["containers"][0]["securityContext"]
    return found


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_admission_that_weakens_a_pod_is_found(mutation: str) -> None:
    change, finding = MUTATIONS[mutation]
    settings = kube_settings("pod", runtime_class="gvisor")
    wanted, got = (sandbox_pod_spec(settings, "i:1", SMALL, lease_seconds=60) for _ in range(2))
    change(got)
    assert finding in find_weakened(wanted, got)


HARMLESS: dict[str, Any] = {
    "placement": lambda spec: spec.update(
        nodeName="n", priority=0, preemptionPolicy="Never", schedulerName="other", affinity={}, overhead={"cpu": "1m"}
    ),
    "tolerations": lambda spec: spec.update(tolerations=[{"key": "node.kubernetes.io/not-ready"}]),
    "what the API server fills in": lambda spec: spec.update(
        serviceAccountName="default", serviceAccount="default", initContainers=[], ephemeralContainers=None
    ),
    "a mirror": lambda spec: spec["containers"][0].update(image="mirror.example/i:1", imagePullPolicy="Always"),
    "another way to write a limit": lambda spec: limits_of(spec).update(memory="0.5Gi", cpu="0.5"),
    "smaller limits": lambda spec: limits_of(spec).update(memory="256Mi", cpu="100m"),
    "a shorter lease": lambda spec: spec.update(activeDeadlineSeconds=30),
    "a user that is not root": lambda spec: context_of(spec).update(runAsUser=1000, runAsNonRoot=True),
    "groups of a namespace": lambda spec: spec["securityContext"].update(
        fsGroup=1000, seLinuxOptions={"level": "s0:c26,c5"}
    ),
    "fewer capabilities": lambda spec: context_of(spec).update(capabilities={"drop": ["ALL", "NET_RAW"]}),
    "a profile": lambda spec: context_of(spec).update(appArmorProfile={"type": "RuntimeDefault"}),
}


@pytest.mark.parametrize("mutation", HARMLESS)
def test_admission_that_weakens_nothing_is_let_be(mutation: str) -> None:
    wanted, got = (sandbox_pod_spec(kube_settings("pod"), "i:1", SMALL, lease_seconds=60) for _ in range(2))
    HARMLESS[mutation](got)
    assert find_weakened(wanted, got) == []


@given(st.data())
def test_whatever_single_field_of_ours_is_taken_away_is_found(data: st.DataObject) -> None:
    wanted, got = (sandbox_pod_spec(kube_settings("pod"), "i:1", SMALL, lease_seconds=60) for _ in range(2))
    context = context_of(got)
    places = [
        *((got, key) for key in PROTECTED),
        *((context, key) for key in context if key not in ("privileged", "readOnlyRootFilesystem")),
        *((limits_of(got), key) for key in limits_of(got)),
    ]
    place, key = data.draw(st.sampled_from(places))
    del place[key]
    assert len(find_weakened(wanted, got)) >= 1


PROTECTED = (
    "automountServiceAccountToken",
    "enableServiceLinks",
    "dnsPolicy",
    "dnsConfig",
    "securityContext",
    "volumes",
    "activeDeadlineSeconds",
)
"""Fields of a pod's spec that isolate it; those of the container whose absence means no are left out."""


def test_no_default_image_is_a_moving_one() -> None:
    for kind in ("pod", "kruise", "agent-sandbox"):
        image = type(kube_settings(kind))().base_image  # type: ignore[call-arg]
        assert ":" in image
        assert not image.endswith(":latest")


def test_a_tasks_pool_is_called_as_people_expect() -> None:
    assert kruise.image_name("r.example:5000/swe-bench/astropy__astropy-12907@sha256:0a") == "astropy__astropy-12907"
    assert readable_name("astropy__astropy-12907") == "astropy-astropy-12907"


@given(st.text(max_size=200), st.text(max_size=50))
def test_names_are_dns_labels_and_stand_for_one_identity(readable: str, identity: str) -> None:
    name = object_name(readable, identity)
    assert len(name) <= 63
    assert Path(name).name == name
    assert name == name.lower()
    assert name[0].isalnum()
    assert name[-1].isalnum()
    assert name != object_name(readable, f"{identity}x")


@given(st.text(min_size=1, max_size=200))
def test_label_values_fit_and_keep_what_fits(text: str) -> None:
    value = label_value(text)
    assert 0 < len(value) <= 63
    assert label_value(value) == value


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"request_memory_mb": 1024, "memory_mb": 512},
            "sandbox.request_memory_mb is 1024 but sandbox.memory_mb is 512",
        ),
        ({"renew_seconds": 100, "lease_seconds": 120}, "has to survive three missed renewals"),
        ({"proxy_port": 8080, "proxy_selector": ()}, "would open that port of every"),
        ({"max_processes": 64}, "set podPidsLimit in the kubelets' configuration"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        kube_settings("pod", **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_settings_can_be_keys_of_a_cache(kind: str) -> None:
    settings = kube_settings(kind, node_selector=["a=b"], tolerations=[{"key": "x"}])
    assert hash(settings) == hash(type(settings).model_validate(settings.model_dump()))
