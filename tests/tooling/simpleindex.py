"""A package index on this machine that can also misbehave, for tests of downloads."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Index:
    """What the server serves, how it misbehaves, and what it was asked.

    Attributes:
        files: file name -> content, all of project `project`.
        listed: file name -> sha256 on the page, where it is not the content's.
        cuts: the next answers' bodies end after so many bytes, one each.
        status: file name -> an HTTP status to answer with instead.
        user: "name:password" that must be given.
        sized: whether answers say how long they are.
        files_at: where the page says that its files are, by default here.
        asked: the path of each request.
        signed: the Authorization header of each request.
    """

    project: str = "vllm"
    files: dict[str, bytes] = field(default_factory=dict)
    listed: dict[str, str] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    status: dict[str, int] = field(default_factory=dict)
    user: str = ""
    sized: bool = True
    files_at: str = ""
    asked: list[str] = field(default_factory=list)
    signed: list[str | None] = field(default_factory=list)
    url: str = ""

    def page(self) -> bytes:
        links = "".join(
            f'<a href="{self.files_at}/files/{name}#sha256={self._sha256(name)}">{name}</a>\n'
            for name in self.files
        )
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()

    def _sha256(self, name: str) -> str:
        return self.listed.get(name) or hashlib.sha256(self.files[name]).hexdigest()

    def requests_for(self, name: str) -> list[str]:
        """The requests for one file."""
        return [path for path in self.asked if path == f"/files/{name}"]


def _handler(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            index.asked.append(self.path)
            index.signed.append(self.headers.get("Authorization"))
            name = self.path.removeprefix("/files/")
            if index.user and index.signed[-1] != _basic(index.user):
                self._answer(401, b"")
            elif self.path == f"/simple/{index.project}/":
                self._answer(200, index.page())
            elif name in index.status or name not in index.files:
                self._answer(index.status.get(name, 404), b"")
            else:
                self._answer(200, index.files[name])

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            if index.sized:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if index.cuts and self.path.startswith("/files/"):
                body = body[: index.cuts.pop(0)]
            self.wfile.write(body)
            self.close_connection = True

    return Handler


class _Server(ThreadingHTTPServer):
    """Quiet about clients that hang up, as a refused download does."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing."""


def _basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    """The index, answering at `index.url` for as long as this lasts."""
    server = _Server(("127.0.0.1", 0), _handler(index))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_port}/simple/"
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
