"""A hub on loopback that serves one data set over the hub's REST calls.

Faked: the listing, the file addresses and their headers. Real: HTTP and the client.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class DataHub(ThreadingHTTPServer):
    """The server, the files of its one repository, and how often each was fetched."""

    daemon_threads = True

    def __init__(self, repository: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repository = repository
        self.files = dict(files)
        self.refused: set[str] = set()
        """Files that are answered with 403."""
        self.fetched: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serve(repository: str, files: Mapping[str, bytes]) -> Iterator[DataHub]:
    hub = DataHub(repository, files)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: DataHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _answer(self, *, body: bool) -> None:
        hub, path = self.server, urlsplit(self.path).path
        api, files = f"/api/datasets/{hub.repository}", f"/datasets/{hub.repository}/resolve/{COMMIT}/"
        if path == f"{api}/revision/main":
            siblings = [{"rfilename": name} for name in hub.files]
            self._send(json.dumps({"id": hub.repository, "sha": COMMIT, "siblings": siblings, "tags": []}).encode(), {})
        elif path.startswith(f"{api}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in hub.files.items()
            ]
            self._send(json.dumps(tree).encode(), {})
        elif path.startswith(files) and (name := path.removeprefix(files)) in hub.files:
            if name in hub.refused:
                self._send(b"", {}, 403)
                return
            data = hub.files[name]
            if body:
                hub.fetched.append(name)
            tag = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
            self._send(data, tag, body=body)
        else:
            self._send(b"{}", {"X-Error-Code": "RepoNotFound"}, 404)

    def _send(self, data: bytes, headers: Mapping[str, str], status: int = 200, *, body: bool = True) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)
