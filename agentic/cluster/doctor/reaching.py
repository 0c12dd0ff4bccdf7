"""Tries whether addresses can be reached, from wherever it runs. The standard library only: its text is run in pods.

    python3 reaching.py '[["tcp", "buildkitd:1234"], ["http", "https://example.org/"], ["pip", "some-package"]]'

Prints a list of texts as JSON, one for each address: empty where it answers, else why it does not. Any answer of an
HTTP server counts, since a refusal comes from somebody who was reached. What is refused is tried again for a moment: a
network policy lets a new pod through only some time after it runs. `pip` asks the package index that pip is
configured to use for a package; without pip there is nothing to ask.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

SECONDS, PAUSE = 8.0, 0.5
SILENCE = "TimeoutError"
LONGEST = 300
"""Of a text: all of them together have to fit into a container's last message, which is 4 KiB."""


def reach(kind: str, address: str, seconds: float = SECONDS) -> str:
    """Why it is not reached; empty when it is."""
    if kind == "pip":
        return _ask_index(address, seconds)
    until, said = time.monotonic() + seconds, ""
    while answer := _try(kind, address, max(until - time.monotonic(), 1.0)):
        if not said or not answer.startswith(SILENCE):
            said = answer  # A refusal tells more than silence, and networks of pods drop what they have just refused.
        if time.monotonic() + PAUSE >= until:
            return said[:LONGEST]
        time.sleep(PAUSE)
    return ""


def _try(kind: str, address: str, seconds: float) -> str:
    try:
        if kind == "tcp":
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), seconds).close()
        else:
            urllib.request.urlopen(address, timeout=seconds).close()
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"{type(reason).__name__}: {reason}"
    return ""


def _ask_index(package: str, seconds: float) -> str:
    options = ["--disable-pip-version-check", "--no-cache-dir", f"--timeout={seconds:g}", "--retries=0"]
    words = [sys.executable, "-m", "pip", "index", "versions", package, *options]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=seconds * 3)
    except subprocess.TimeoutExpired:
        return "TimeoutError: no answer"
    if asked.returncode == 0 or "No module named pip" in asked.stderr:
        return ""
    said = [line for line in asked.stderr.splitlines() if line.startswith(("WARNING: Retrying", "ERROR"))]
    return said[-1][:LONGEST] if said else f"pip ended with exit code {asked.returncode}"


def reach_all(addresses: "list[list[str]]", seconds: float = SECONDS) -> "list[str]":
    """All at the same time."""
    with ThreadPoolExecutor(max(len(addresses), 1)) as pool:
        return list(pool.map(lambda one: reach(one[0], one[1], seconds), addresses))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(reach_all(json.loads(sys.argv[1]))))
