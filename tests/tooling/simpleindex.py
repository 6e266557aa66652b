"""A package index on this machine that can also misbehave, for tests of downloads."""

from __future__ import annotations

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
        ranges: whether range requests are honoured.
        shift: partial answers begin so many bytes too late.
        status: file name -> an HTTP status to answer with instead.
        user: "name:password" that must be given.
    """

    project: str = "vllm"
    files: dict[str, bytes] = field(default_factory=dict)
    listed: dict[str, str] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    shift: int = 0
    status: dict[str, int] = field(default_factory=dict)
    user: str = ""
    sized: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def page(self) -> bytes:
        links = "".join(
            f'<a href="/files/{name}#sha256={self.listed.get(name, _sha256(content))}">{name}</a>\n'
            for name, content in self.files.items()
        )
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()

    def requests_for(self, name: str) -> list[str | None]:
        """The range asked for by each request for one file."""
        return [asked for path, asked in self.asked if path == f"/files/{name}"]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _handler(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            index.asked.append((self.path, wanted))
            if index.user and self.headers.get("Authorization") != _basic(index.user):
                self._answer(401, b"")
            elif self.path == f"/simple/{index.project}/":
                self._answer(200, index.page())
            elif self.path.startswith("/files/"):
                self._file(self.path.removeprefix("/files/"), wanted)
            else:
                self._answer(404, b"")

        def _file(self, name: str, wanted: str | None) -> None:
            content = index.files.get(name)
            if name in index.status or content is None:
                self._answer(index.status.get(name, 404), b"")
            elif wanted and index.ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(content):
                    self._answer(416, b"")
                    return
                start += index.shift
                self._answer(206, content[start:], f"bytes {start}-{len(content) - 1}/*")
            else:
                self._answer(200, content)

        def _answer(self, status: int, body: bytes, content_range: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            if index.sized:
                self.send_header("Content-Length", str(len(body)))
            if content_range:
                self.send_header("Content-Range", content_range)
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
    import base64

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
