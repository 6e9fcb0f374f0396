"""A hub on loopback, for tests: it speaks enough of the hub's protocol for the real client, and it can misbehave.

A file can be swapped for another, its transfer can be cut, a login page can stand in front of everything:

    with Hub() as hub:
        hub.models["lab/tiny"] = {"config.json": b"{}", "model.safetensors": weights}
        hub.cuts["model.safetensors"] = 1  # the next transfer of that file ends in the middle
        os.environ["HF_ENDPOINT"] = hub.url
"""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = {"main": COMMIT, "v1": COMMIT, COMMIT: COMMIT}
LARGE = (".safetensors", ".parquet", ".bin")  # what the hub keeps in LFS, and states the SHA-256 of


class Hub(ThreadingHTTPServer):
    """The repositories it has, the faults it is to make, and the requests that it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.models: dict[str, dict[str, bytes]] = {}
        self.datasets: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.tokens: set[str] = set()
        """If not empty, only who sends one of these may see a repository."""
        self.swapped: dict[str, bytes] = {}
        """Files whose content is another than the one that the listing states."""
        self.cuts: dict[str, int] = {}
        """Files whose next transfers, so many of them, end in the middle."""
        self.gate: threading.Barrier | None = None
        """Where each transfer waits for the others, so that a test can have several at the same time."""
        self.page: bytes | None = None
        """What a login page of some network answers to everything."""

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


class _Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if self.server.page is not None:
            return self.send(200, self.server.page, {"Content-Type": "text/html"})
        if listing := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/revision/(.+)", path):
            kind, repo, revision = listing.groups()
            if files := self.find(kind, repo, revision):
                siblings = [_sibling(name, data) for name, data in files.items()]
                self.send(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode(), {})
        elif resolve := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            kind, repo, revision, name = resolve.groups()
            if files := self.find("datasets" if kind else "models", repo, revision):
                self.transfer(name, files[name])
        else:
            self.send(404, b"", {})

    def find(self, kind: str, repo: str, revision: str) -> dict[str, bytes] | None:
        """The files of a repository; None if it may not be seen, and then that was answered."""
        files = (self.server.models if kind == "models" else self.server.datasets).get(repo)
        token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        if files is None or (self.server.tokens and token not in self.server.tokens):
            self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in REVISIONS:
            self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return files
        return None

    def transfer(self, name: str, data: bytes) -> None:
        stated = {"ETag": f'"{_blob_id(data)}"', "X-Repo-Commit": COMMIT}
        if name.endswith(LARGE):
            stated |= {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
        data = self.server.swapped.get(name, data)
        if self.command == "HEAD":
            return self.send(200, data, stated)
        if self.server.gate is not None:
            self.server.gate.wait(timeout=30)
        cut = self.server.cuts.get(name, 0) > 0
        if cut:
            self.server.cuts[name] -= 1
            self.close_connection = True
        self.send(200, data, stated, sent=len(data) // 2 if cut else len(data))

    def send(self, status: int, data: bytes, headers: dict[str, str], sent: int | None = None) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:sent])

    def log_message(self, format: str, *args: object) -> None:
        """Nothing to the terminal: `Hub.requests` has it."""


def _sibling(name: str, data: bytes) -> dict[str, object]:
    sibling: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": _blob_id(data)}
    if name.endswith(LARGE):
        sibling["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return sibling


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob " + str(len(data)).encode() + b"\0" + data).hexdigest()
