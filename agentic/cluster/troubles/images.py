"""Troubles of images: pulling them, and having them built."""

from agentic.cluster.troubles.kinds import PULLING, SAYING, Kind, Place, sign

RESOLVER = "containerd 2.3, core/remotes/docker/resolver.go"
KUBELET = "kubelet 1.34, pkg/kubelet/images"
PULL = r"[Pp]ull.*"
"""Each line of kubelet about a pull says so somewhere before the registry's own words."""

KINDS = (
    Kind(
        "registry-limit",
        "the registry answers 429: too many pulls",
        "wait, log in with a Secret (cluster.image_pull_secret), or pull through a mirror",
        (
            sign(PULLING, PULL + r"(?:429 Too Many Requests|toomanyrequests)", RESOLVER),
            sign(SAYING, r"429 Too Many Requests|toomanyrequests", "registry API, error code TOOMANYREQUESTS"),
        ),
        transient=True,
    ),
    Kind(
        "registry-certificate",
        "the registry's certificate is not trusted by the node or the builder",
        "give the node's containerd (hosts.toml) or the builder the registry's CA",
        (
            sign(PULLING, PULL + r"x509: ", "Go crypto/x509 by containerd"),
            sign(SAYING, r"tls: failed to verify certificate: x509: |x509: certificate signed by", "Go crypto/x509"),
        ),
    ),
    Kind(
        "registry-plain-http",
        "a registry that speaks HTTP is asked by HTTPS",
        "mark the registry as insecure in the node's containerd (hosts.toml) or the builder, or give it TLS",
        (sign((*PULLING, *SAYING), r"server gave HTTP response to HTTPS client", "Go net/http by containerd"),),
    ),
    Kind(
        "registry-unreachable",
        "the node does not reach the registry",
        "check the registry's host name and the node's way out (NAT, DNS, firewall), or use a mirror in the network",
        (
            sign(
                PULLING,
                PULL + r"(?:dial tcp|i/o timeout|TLS handshake timeout|no such host|context deadline exceeded)",
                "Go net by containerd",
            ),
            sign(PULLING, r"^RegistryUnavailable\b", KUBELET),
        ),
        transient=True,
    ),
    Kind(
        "image-refused",
        "the registry does not let the node pull: 401, 403, or a repository that is not shown",
        "name a Secret whose host and region are the image's in cluster.image_pull_secret (sandboxes: "
        "sandbox.image_pull_secrets); or correct the repository's name",
        (
            sign(
                PULLING,
                PULL + r"(?:401 Unauthorized|403 Forbidden|failed to authorize|authorization failed|"
                r"pull access denied|authentication required|no basic auth credentials|: denied)",
                RESOLVER,
            ),
        ),
    ),
    Kind(
        "image-platform",
        "the image has no variant for the node's processor",
        "build the image for the node's platform, or choose nodes of the image's",
        (
            sign(PULLING, PULL + r"no match for platform in manifest", "containerd 2.3, core/images/image.go"),
            sign(SAYING, r"exec format error", "Linux, ENOEXEC"),
        ),
    ),
    Kind(
        "image-missing",
        "the registry does not have the image",
        "build and push it, or correct its name and tag",
        (sign(PULLING, PULL + r"(?:: not found|manifest unknown|MANIFEST_UNKNOWN|NAME_UNKNOWN)", RESOLVER),),
    ),
    Kind(
        "image-name-invalid",
        "what is set as image is no image name",
        "correct the image's name in the settings or the task",
        (
            sign(PULLING, r"^InvalidImageName\b|^Failed: Error: InvalidImageName", KUBELET),
            sign((Place.EVENT,), r"^InspectFailed: Failed to apply default image tag", KUBELET),
        ),
    ),
    Kind(
        "image-never-pulled",
        "the image is not on the node, and the pod forbids pulling it",
        "put the image on every node, or set another imagePullPolicy",
        (sign(PULLING, r"\bErrImageNeverPull\b|is not present with pull policy of Never", KUBELET),),
    ),
    Kind(
        "image-pull-secret-missing",
        "the Secret for the registry is not in the namespace",
        "create it: kubectl create secret docker-registry NAME --docker-server=HOST ..., or name another one",
        (
            sign(
                (Place.EVENT,),
                r"^FailedToRetrieveImagePullSecret\b",
                "kubelet 1.34, pkg/kubelet/kubelet_pods.go",
            ),
        ),
    ),
    Kind(
        "image-pull-secret-unusable",
        "the Secret for the registry is not one that pulls: another type, or no JSON in it",
        "create it as type kubernetes.io/dockerconfigjson: kubectl create secret docker-registry ...",
    ),
    Kind(
        "image-pull-secret-other-registry",
        "the Secret has no entry for the image's registry",
        "create it with --docker-server set to the host that the image's name begins with",
    ),
    Kind(
        "image-pull-secret-other-region",
        "the Secret's registry is in another region than the image's",
        "use the image's region in both: log in to that region's registry, or pull the image from the Secret's",
    ),
    Kind(
        "builder-unreachable",
        "BuildKit does not answer",
        "check that its pod runs and its Service points to it: kubectl get pods,endpoints -l app=buildkitd",
        (
            sign(
                SAYING,
                r"failed to list workers: Unavailable|listing workers for Build|dial tcp \S+:1234: ",
                "buildctl 0.32, client/workers.go",
            ),
            sign(SAYING, r"BuildKit at \S+ does not answer", "agentic.images, job_builder.py"),
        ),
        transient=True,
    ),
    Kind(
        "image-not-built",
        "an image could not be built",
        "read the build's log: kubectl logs job/JOB; the task's Dockerfile is named there",
        (sign(SAYING, r"failed to solve: |error: failed to solve", "buildctl 0.32, client/solve.go"),),
        is_general=True,
    ),
    Kind(
        "image-not-pulled",
        "the image cannot be pulled",
        "read the registry's answer in the message; check the name, the Secret and the node's way out",
        (
            sign(PULLING, r"^(?:ErrImagePull|ImagePullBackOff|ImageInspectError|SignatureValidationFailed)\b", KUBELET),
            sign((Place.EVENT,), r"^Failed: Failed to pull image|^Failed: Error: (?:ErrImagePull|ImagePullB)", KUBELET),
        ),
        transient=True,
        is_general=True,
    ),
)
