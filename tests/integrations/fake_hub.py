"""A stand-in for the HTTP API of the Hugging Face Hub: one repository, kept in memory."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class FakeHub:
    """What was uploaded, and which requests came.

    Attributes:
        files: Content by name.
        private: Whether the repository was made so; None before it was made.
        asked: Method and path of each request.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.private: bool | None = None
        self.asked: list[str] = []
        self.url = ""

    @property
    def commit(self) -> str:
        """The name of what is there now."""
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Answer on a port of this machine."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def do_POST(self) -> None:
            hub.asked.append(f"POST {self.path}")
            body = self._body()
            if self.path == "/api/repos/create":
                made = json.loads(body)
                hub.private = made.get("visibility") == "private" or bool(made.get("private"))
                name = f"{made['organization']}/{made['name']}"
                self._answer({"url": f"{hub.url}/{name}", "name": name})
            elif "/preupload/" in self.path:
                names = [file["path"] for file in json.loads(body)["files"]]
                modes = {"uploadMode": "regular", "shouldIgnore": False}
                self._answer({"files": [{"path": name, **modes} for name in names]})
            elif "/commit/" in self.path:
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        value = line["value"]
                        hub.files[value["path"]] = base64.b64decode(value["content"])
                self._answer(
                    {"commitUrl": f"{hub.url}/me/maps/commit/{hub.commit}", "commitOid": hub.commit}
                )
            elif self.path == "/api/validate-yaml":
                self._answer({"errors": [], "warnings": []})
            else:
                self._answer({"error": "unknown"}, 404)

        def do_GET(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/") and "/tree/" in path:
                self._answer(
                    [
                        {
                            "type": "file",
                            "path": n,
                            "size": len(c),
                            "oid": hashlib.sha1(c).hexdigest(),
                        }
                        for n, c in hub.files.items()
                    ]
                )
            elif path.startswith("/api/models/") and hub.private is not None:
                self._answer(
                    {
                        "id": "me/maps",
                        "sha": hub.commit,
                        "siblings": [{"rfilename": n} for n in hub.files],
                    }
                )
            elif (
                "/resolve/" in path
                and (content := hub.files.get(path.rpartition("/")[2])) is not None
            ):
                etag = f'"{hashlib.sha1(content).hexdigest()}"'
                self._answer(content, ETag=etag, X_Repo_Commit=hub.commit)
            else:
                self._answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

        do_HEAD = do_GET  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
