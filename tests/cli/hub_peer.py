"""A stand-in for a running hub's control API, whose fleet and events a test decides; real sockets, no hub behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.control.models import ApiModel, BreakerView, HubView, Server, Status
from holdfast.control.server.status_page import HEADERS, _files

TOKEN = "a-control-token-of-the-tests"
NOW = 1_700_000_000.0
"""The peer's time of day; it stands still."""


def server(name: str, status: Status = "available", **more: Any) -> Server:
    """A server, as the hub would tell of it."""
    states = {"available": "connected", "transient": "reconnecting", "permanent": "parked"}
    known = {
        "id": name,
        "transport": "stdio",
        "target": f"{name}-mcp --stdio",
        "state": states.get(status, status),
        "status": status,
        "summary": f"It is {status}.",
        "since": NOW - 200,
        "breaker": BreakerView(state="closed"),
        "verified": True,
        **more,
    }
    return Server.model_validate(known)


class HubPeer:
    """What is asked for, what is answered, and what happens."""

    def __init__(self, *servers: Server) -> None:
        self.servers = {one.id: one for one in servers}
        self.hub = HubView(
            version="1.2.3",
            pid=1,
            now=NOW,
            started=NOW - 4000,
            endpoint="http://hub.test/mcp",
            config="/home/me/mcp.json",
        )
        self.answers: dict[str, tuple[int, Any]] = {}
        """By ``METHOD path``, what is answered instead."""
        self.asked: list[tuple[str, Any]] = []
        """Every request: ``METHOD path`` and its body."""
        self.url = ""
        self.closed = False
        """Whether it answers no more: its listener may still take connections for a moment."""
        self._streams: list[Queue[tuple[str, Any] | None]] = []
        self._opened = threading.Semaphore(0)
        self._looked = threading.Semaphore(0)

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to find it."""
        return {"HOLDFAST_URL": self.url, "HOLDFAST_CONTROL_TOKEN": TOKEN}

    def watched(self) -> None:
        """Wait until a client follows a stream."""
        assert self._opened.acquire(timeout=60)

    def looked_at(self) -> None:
        """Wait until a client asked for the servers."""
        assert self._looked.acquire(timeout=60)

    def tell(self, event: str, data: Mapping[str, Any] | ApiModel) -> None:
        """Have it happen."""
        for stream in self._streams:
            stream.put((event, data.model_dump(mode="json") if isinstance(data, ApiModel) else dict(data)))

    def change(self, one: Server) -> None:
        """Let a server be another."""
        self.servers[one.id] = one
        self.tell("server", one)

    def end(self) -> None:
        """End every stream, as a hub does that ends."""
        for stream in self._streams:
            stream.put(None)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """What is answered."""
        self.asked.append((f"{method} {path}", body))
        if (told := self.answers.get(f"{method} {path}")) is not None:
            return told
        _, _, kind, *rest = path.split("/")
        if kind == "hub":
            return 200, self.hub.model_dump(mode="json")
        if kind == "servers" and not rest:
            fleet = [one.model_dump(mode="json") for one in self.servers.values()]
            self._looked.release()
            return 200, {"now": NOW, "servers": fleet}
        if kind == "me":
            roles = ["approve", "operate", "read"]
            return 200, {"principal": "", "groups": [], "roles": roles, "signed_in": False, "expires_in": None}
        if kind == "calls":
            return 200, {"calls": []}
        if kind == "activity":  # as of a hub without an audit
            return 200, {"audit": False, "principal": "", "records": []}
        name = unquote(rest[0]) if rest else ""
        if kind == "servers" and name in self.servers:
            return 200, self.servers[name].model_dump(mode="json")
        return 404, {"error": f"there is no {path}", "hint": ""}

    def stream(self) -> Iterator[tuple[str, Any]]:
        """The events that a listener gets."""
        mine: Queue[tuple[str, Any] | None] = Queue()
        self._streams.append(mine)
        yield "hello", self.hub.model_dump(mode="json")
        self._opened.release()
        while (event := mine.get()) is not None:
            yield event


@contextmanager
def hub_peer(*servers: Server) -> Iterator[HubPeer]:
    """Run one for as long as the block runs."""
    peer = HubPeer(*servers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has there
            pass

        def _serve(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = urlsplit(self.path).path
            if peer.closed:
                self.close_connection = True
            elif method == "GET" and not path.startswith("/api/"):
                self._page(path)
            elif self.headers.get("authorization") != f"Bearer {TOKEN}":
                self._answer(401, {"error": "the control token is wrong", "hint": ""})
            elif "event-stream" in self.headers.get("accept", ""):
                peer.asked.append((f"{method} {self.path}", None))
                self._stream()
            else:
                self._answer(*peer.answer(method, path, json.loads(body) if body else None))

        def _page(self, path: str) -> None:
            """The files of the status page, with their own headers."""
            file = _files().get(path.removeprefix("/static/") if path != "/" else "index.html")
            if file is None:
                return self._answer(404, {"error": "there is no such file"})
            self.send_response(200)
            for name, value in {**HEADERS, "content-type": file.kind, "content-length": str(len(file.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(file.body)
            return None

        def _answer(self, status: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            for event, data in peer.stream():
                try:
                    self.wfile.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())
                except OSError:  # the listener went away
                    return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        peer.url = f"http://127.0.0.1:{listener.server_address[1]}"
        thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield peer
        finally:
            peer.closed = True
            peer.end()
            listener.shutdown()
            thread.join()
