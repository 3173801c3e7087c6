"""A server over HTTP whose next answer is stored, byte for byte: its head and its body. It runs in threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any

from tests.peers.heavy_server import ANSWERS

__all__ = ["HeavyHttp", "answer", "heavy_http", "in_a_thread"]


def answer(body: bytes, *headers: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    """The bytes of an answer; ``@ID@`` in its body stands for the id of the request."""
    lines = (b"HTTP/1.1 " + status, b"content-type: " + kind, b"connection: close", *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class HeavyHttp(ThreadingHTTPServer):
    """The server; ``stored`` has the next answers by method."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stored: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The hub may leave in the middle of an answer."""


class _Handler(BaseHTTPRequestHandler):
    server: HeavyHttp

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, number = request.get("method", ""), json.dumps(request.get("id")).encode()
        if "id" not in request:
            data = answer(b"", b"content-length: 0", status=b"202 Accepted")
        elif method in self.server.stored:
            data = self.server.stored[method].replace(b"@ID@", number)
        else:
            result = json.dumps(ANSWERS.get(method, {})).encode()
            data = answer(b'{"jsonrpc":"2.0","id":' + number + b',"result":' + result + b"}")
        self.close_connection = True
        with suppress(OSError):
            self.wfile.write(data)

    def do_GET(self) -> None:
        self.wfile.write(answer(b"", b"content-length: 0", status=b"405 Method Not Allowed"))
        self.close_connection = True

    def do_DELETE(self) -> None:
        self.do_GET()

    def log_message(self, *args: Any) -> None:
        """Nothing is printed."""


@contextmanager
def heavy_http() -> Iterator[HeavyHttp]:
    """The server, while the block runs."""
    with HeavyHttp() as server, in_a_thread(server):
        yield server


@contextmanager
def in_a_thread(server: BaseServer) -> Iterator[None]:
    """Serve while the block runs."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
