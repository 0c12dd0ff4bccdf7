"""A hub on loopback that serves one model over both hubs' REST calls, or one data set, and can lose connections.

Faked: the listing, the file addresses and their headers. Real: HTTP, ranges, closed sockets, and the clients.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, urlsplit

MODEL = "owner/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """The server with its repository's files, its faults, and a record of what was asked for."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes], repository: str, kind: Literal["models", "datasets"]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(files)
        self.repository = repository
        self.api = f"/api/{kind}/{repository}"
        self.resolve = f"/{repository}/resolve/" if kind == "models" else f"/datasets/{repository}/resolve/"
        self.cuts: dict[str, list[int]] = {}
        """File → for each coming request, after how many bytes the connection is closed."""
        self.refused: set[str] = set()
        """Files that are answered with 403."""
        self.ranges: list[tuple[str, str | None]] = []
        """(file, Range header) of each GET."""
        self.fetched: list[str] = []
        """The file of each GET that was not refused."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serve(
    files: Mapping[str, bytes], repository: str = MODEL, kind: Literal["models", "datasets"] = "models"
) -> Iterator[Hub]:
    hub = Hub(files, repository, kind)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


@cache
def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _answer(self, *, body: bool) -> None:
        hub, parts = self.server, urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        modelscope = f"/api/v1/models/{hub.repository}/repo"
        if parts.path == f"{hub.api}/revision/main":
            siblings = [{"rfilename": name} for name in hub.files]
            about = {"id": hub.repository, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            self._send_json(about, body)
        elif parts.path.startswith(f"{hub.api}/tree/{COMMIT}"):
            tree = [{"type": "file", "path": n, "size": len(d), "oid": _digest(d)} for n, d in hub.files.items()]
            self._send_json(tree, body)
        elif parts.path == f"{modelscope}/files":
            self._send_json({"Code": 200, "Success": True, "Data": {"Files": self._listing()}}, body)
        elif parts.path == modelscope:
            self._send_file(query["FilePath"], body)
        elif parts.path.startswith(hub.resolve):
            self._send_file(parts.path.removeprefix(hub.resolve).partition("/")[2], body)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

    def _listing(self) -> list[dict[str, object]]:
        return [
            {"Path": name, "Name": name, "Type": "blob", "Size": len(data), "Sha256": _digest(data)}
            for name, data in self.server.files.items()
        ]

    def _send_json(self, value: object, body: bool) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, body)

    def _send_file(self, name: str, body: bool) -> None:
        data = self.server.files[name]
        headers = {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if not body:
            self._send(200, data, headers, body)
            return
        wanted = self.headers.get("Range")
        self.server.ranges.append((name, wanted))
        if name in self.server.refused:
            self._send(403, b"{}", {}, body)
            return
        self.server.fetched.append(name)
        status, start = 200, 0
        if wanted:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(status, data[start:], headers, body, self._next_cut(name))

    def _next_cut(self, name: str) -> int | None:
        cuts = self.server.cuts.get(name)
        return cuts.pop(0) if cuts else None

    def _send(
        self, status: int, data: bytes, headers: Mapping[str, str], body: bool, cut_after_bytes: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data if cut_after_bytes is None else data[:cut_after_bytes])
        if cut_after_bytes is not None:
            self.close_connection = True
