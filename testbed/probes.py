"""How one sees from outside that a server answers."""

import json
import ssl
import urllib.error
import urllib.request

from testbed import pki
from testbed.component import Machine


def get(url: str, authority: str | None = None, token: str | None = None) -> bytes | None:
    """The body of a 200, else None."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    context = ssl.create_default_context(cafile=authority) if authority else None
    try:
        with urllib.request.urlopen(request, timeout=2, context=context) as answer:
            return bytes(answer.read())
    except (urllib.error.URLError, OSError):
        return None


def ask(machine: Machine, path: str) -> bytes | None:
    """GET at the API server as the administrator."""
    layout = machine.layout
    config = json.loads(layout.kubeconfig(pki.ADMIN).read_text())
    token = config["users"][0]["user"]["token"]
    return get(f"https://127.0.0.1:{layout.api_port}{path}", f"{layout.pki}/ca.crt", token)
