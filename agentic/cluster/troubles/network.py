"""Troubles of reachability: the proxy, the network outside, the package index."""

from agentic.cluster.troubles.kinds import SAYING, Kind, sign

KINDS = (
    Kind(
        "proxy-unreachable",
        "agents do not reach the proxy",
        "set LOCAL_IP or rollout.proxy.advertised_host to an address that pods reach, open sandbox.proxy_port in the "
        "network policy, and try: kubectl exec SANDBOX-POD -- curl http://HOST:PORT/health",
        (
            sign(
                SAYING,
                r"no answer from the model's endpoint: |\bProxyUnavailableError\b",
                "agentic.rollout, agents/chat.py, agents/inside_program.py and proxy_actor.py",
            ),
        ),
        transient=True,
    ),
    Kind(
        "package-index-unreachable",
        "the Python package index does not answer",
        "set a mirror (PIP_INDEX_URL, or pip's -i), or give the nodes a way out",
        (
            sign(
                SAYING,
                r"Could not fetch URL|after connection broken by .*/simple/|Connection to \S*pypi\S* timed out",
                "pip 25, _internal/network and index/collector.py",
            ),
        ),
        transient=True,
    ),
    Kind(
        "no-egress",
        "nothing outside the cluster can be reached, or no name resolved",
        "give the nodes a way out (NAT, SNAT, proxy) and DNS, or use mirrors in the network (model.endpoint, pip's -i)",
        (
            sign(
                SAYING,
                r"Temporary failure in name resolution|Name or service not known|No route to host"
                r"|Network is unreachable|NameResolutionError|Could not resolve host|no such host",
                "glibc getaddrinfo; Linux, ENETUNREACH; urllib3; curl; Go net",
            ),
        ),
        transient=True,
    ),
    Kind(
        "connection-refused",
        "something that should listen does not",
        "is the pod that listens there running, and is its port right? kubectl get pods,svc",
        (
            sign(
                SAYING,
                r"ConnectionRefused(?:Error)?\b|[Cc]onnection refused|ECONNREFUSED|Connect call failed",
                "Linux, ECONNREFUSED, by Python, Go, Node and aiohttp",
            ),
        ),
        transient=True,
    ),
    Kind(
        "timed-out",
        "something did not answer in time",
        "is a network policy or firewall in the way, or the other side overloaded? Raise the time-out if it is slow",
        (
            sign(
                SAYING,
                r"\bTimeoutError\b|ConnectTimeout\b|ReadTimeout(?:Error)?\b|[Cc]onnection timed out|ETIMEDOUT"
                r"|i/o timeout|context deadline exceeded|Read timed out",
                "Linux, ETIMEDOUT, by Python, urllib3, Go and Node",
            ),
        ),
        transient=True,
        is_general=True,
    ),
)
