"""A plain client of the legacy era, as small as possible: it opens sessions, lists and calls."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

__all__ = ["VERSION", "LegacyClient", "open_sessions"]

VERSION = "2025-11-25"
ACCEPT = "application/json, text/event-stream"


class LegacyClient:
    """One connection; a session may be opened many times over it."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, seconds: float = 30.0) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._path = parts.path
        self._http = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
        self._headers = {"accept": ACCEPT, "content-type": "application/json", **(headers or {})}
        self._ids = itertools.count(1)
        self.session: str | None = None

    def open(self) -> None:
        """Begin a session."""
        self.session = None
        client = {"name": "benchmark", "version": "1"}
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        self.ask("initialize", params)
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request; its answer as a message."""
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params or {}}
        answer = self._post(message)
        for line in answer.splitlines():
            data = line.removeprefix("data:").strip()
            if data.startswith("{") and ('"result"' in data or '"error"' in data):
                found: dict[str, Any] = json.loads(data)
                return found
        raise RuntimeError(f"no answer in {answer[:200]!r}")

    def tools(self) -> list[str]:
        """The names of all tools, from all pages."""
        names: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            answer = self.ask("tools/list", cursor)
            if "result" not in answer:
                raise RuntimeError(f"error {answer['error']}")
            names += [tool["name"] for tool in answer["result"]["tools"]]
            if not (more := answer["result"].get("nextCursor")):
                return names
            cursor = {"cursor": more}

    def _post(self, message: Mapping[str, Any]) -> str:
        headers = dict(self._headers)
        if self.session is not None:
            headers |= {"mcp-session-id": self.session, "mcp-protocol-version": VERSION}
        try:
            self._http.request("POST", self._path, json.dumps(message), headers)
            response = self._http.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException):
            self._http.close()
            raise
        self.session = response.getheader("mcp-session-id") or self.session
        if response.status >= 400:
            raise RuntimeError(f"status {response.status}: {text[:200]}")
        return text

    def close(self) -> None:
        """Close the connection; the session stays."""
        self._http.close()


@contextmanager
def open_sessions(url: str, count: int, *, streams: bool) -> Iterator[None]:
    """This many idle sessions, each with an open stream if asked for, until the end of the block."""
    with ExitStack() as stack, closing(LegacyClient(url)) as client:
        for _ in range(count):
            client.open()
            assert client.session is not None
            if streams:
                stack.callback(_stream(url, client.session).close)
        yield


def _stream(url: str, session: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    stream = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    headers = {"accept": "text/event-stream", "mcp-session-id": session, "mcp-protocol-version": VERSION}
    stream.request("GET", parts.path, headers=headers)
    response = stream.getresponse()
    if response.status != 200:
        raise RuntimeError(f"no stream: {response.status}")
    return stream
