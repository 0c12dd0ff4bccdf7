"""Troubles with the API server: reaching it, rights, kinds, admission, clocks."""

from agentic.cluster.troubles.kinds import MAKING, SAYING, Kind, Place, sign

ASKING = (*MAKING, Place.WAITING)

KINDS = (
    Kind(
        "cluster-unreachable",
        "the API server does not answer",
        "check KUBECONFIG and the network to the cluster; without one: python3 workflows/submit.py local",
        (sign((Place.ANSWER,), r"the API server cannot be reached", "agentic.cluster.transport"),),
        transient=True,
    ),
    Kind(
        "credentials-refused",
        "the API server does not accept who we are",
        "log in again, or renew the token or certificate in KUBECONFIG",
        (sign(ASKING, r"credentials were refused|^Unauthorized\b", "kube-apiserver 1.34, status reason Unauthorized"),),
    ),
    Kind(
        "namespace-missing",
        "the namespace is not there",
        "kubectl create namespace NAME, or correct cluster.namespace",
        (sign(MAKING, r'namespaces "[^"]+" not found', "kube-apiserver 1.34, admission/plugin/namespace/lifecycle"),),
    ),
    Kind(
        "right-missing",
        "the account lacks a right",
        "have an admin apply the run's Role (python3 workflows/submit.py render --objects DIR writes it)",
        (
            sign(
                ASKING,
                # A kubelet may read a pod's claims only once the API server's graph knows the pod: it asks again.
                r'User "(?!system:node:)[^"]+" cannot \S+ resource "[^"]+"|\S+ may not \S+ \S+: add it to'
                r"|the account lacks the right",
                "kube-apiserver 1.34, endpoints/handlers/responsewriters/errors.go",
            ),
        ),
    ),
    Kind(
        "webhook-down",
        "a webhook of the cluster does not answer, so objects are refused",
        "restart what the webhook belongs to (named in the message)",
        (sign(ASKING, r"failed calling webhook", "kube-apiserver 1.34, admission/plugin/webhook"),),
        transient=True,
    ),
    Kind(
        "admission-refused",
        "a policy of the cluster refused an object",
        "read the policy's words; for Pod Security set sandbox.run_as_user, or label the namespace",
        (
            sign(
                ASKING,
                r"admission webhook \"[^\"]+\" denied the request|violates PodSecurity|ValidatingAdmissionPolicy",
                "kube-apiserver 1.34, admission/plugin/webhook and policy; pod-security-admission",
            ),
        ),
    ),
    Kind(
        "kind-missing",
        "the cluster does not know a kind of object, or serves another version of it",
        "install the controller (Argo Workflows, KubeRay, OpenKruise Agents or agent-sandbox) in a version that has it",
        (
            sign(
                ASKING,
                r'no matches for kind "[^"]+" in version|could not find the requested resource',
                "kubectl; kube-apiserver 1.34, status of an unknown path",
            ),
        ),
    ),
    Kind(
        "controller-silent",
        "nothing has taken up an object since it was made: its controller does not run, or not for this namespace",
        "kubectl get deployments -A: is Argo's workflow-controller, or KubeRay's operator, there and ready?",
        found_by="doctor, explain",
    ),
    Kind(
        "ray-cluster-invalid",
        "KubeRay refuses the RayCluster's description",
        "read the operator's words; names longer than 63 characters and old operators are usual causes",
        (
            sign(
                (Place.EVENT,),
                r"^InvalidRayCluster(?:Spec|Metadata|Status)\b",
                "KubeRay 1.5.0, controllers/ray/raycluster_controller.go",
            ),
        ),
    ),
    Kind(
        "ray-cluster-failed",
        "KubeRay gave the RayCluster up, or suspended it",
        "delete it and run the step again: launch-cluster makes it anew",
        (
            sign(
                (Place.OBJECT,),
                r"^RayCluster is (?:failed|suspended)\b|^RayClusterSuspended is True",
                "KubeRay 1.5.0, apis/ray/v1/raycluster_types.go",
            ),
        ),
        is_general=True,
    ),
    Kind(
        "ray-pod-not-created",
        "KubeRay could not make a pod of the RayCluster",
        "read the API server's words in the message: quota, rights, admission",
        (
            sign(
                (Place.EVENT, Place.OBJECT),
                r"^FailedToCreate(?:Head|Worker)Pod\b|^ReplicaFailure is True",
                "KubeRay 1.5.0, controllers/ray/utils/constant.go",
            ),
        ),
        transient=True,
        is_general=True,
    ),
    Kind(
        "clock-skew",
        "two clocks differ",
        "run NTP or chrony on the machine named: tokens, certificates and leases go by the clock",
        (
            sign(
                SAYING,
                r"x509: certificate has expired or is not yet valid|token is not valid yet|clock skew",
                "Go crypto/x509; kube-apiserver 1.34, serviceaccount tokens",
            ),
        ),
    ),
    Kind(
        "object-refused",
        "the API server refuses what a run would make, for a reason that has no name here",
        "read its words in the message",
    ),
)
