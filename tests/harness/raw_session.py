"""A legacy session over HTTP by hand, so that its streams can be cut, or left unopened, where a test wants it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2

from tests.clients.raw import initialize

__all__ = ["Session"]

VERSION = "2025-11-25"


class Session:
    """A legacy session by hand, so that its streams can be cut where the test wants it."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self._http = http
        self.url = url
        self.headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION}

    async def begin(self, **capabilities: Any) -> None:
        """Shake hands."""
        request = initialize()
        request["params"]["capabilities"] = capabilities
        answer = await self._http.post(self.url, json=request, headers=self.headers)
        self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await self._http.post(self.url, json=told, headers=self.headers)).status_code == 202

    @asynccontextmanager
    async def call(
        self, tool: str, arguments: dict[str, Any], **meta: Any
    ) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
        """The events of the answer to a call."""
        params = {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})}
        async with self.request("tools/call", params) as events:
            yield events

    @asynccontextmanager
    async def request(
        self, method: str, params: dict[str, Any] | None = None, *, status: int = 200
    ) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
        """The events of the answer to a request; its id is always the same."""
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}
        async with self._http.stream("POST", self.url, json=body, headers=self.headers) as answer:
            assert answer.status_code == status
            async with aclosing(_events(answer)) as events:
                yield events

    @asynccontextmanager
    async def notices(self, *, after: str | None = None) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
        """The stream of notices, once it is open; from an event on where one is named."""
        headers = self.headers if after is None else {**self.headers, "last-event-id": after}
        async with self._http.stream("GET", self.url, headers=headers, timeout=None) as answer:
            assert answer.status_code == 200
            async with aclosing(_events(answer)) as events:
                yield events

    async def end(self) -> None:
        """Say goodbye."""
        assert (await self._http.delete(self.url, headers=self.headers)).status_code == 200

    async def come_back(self, after: str) -> list[dict[str, str]]:
        """All events of the stream that goes on there."""
        headers = {**self.headers, "last-event-id": after}
        async with (
            self._http.stream("GET", self.url, headers=headers) as answer,
            aclosing(_events(answer)) as events,
        ):
            return [event async for event in events]


async def _events(answer: httpx2.Response) -> AsyncGenerator[dict[str, str], None]:
    """The events of an answer; a plain one is its only event."""
    if answer.headers["content-type"] == "application/json":
        yield {"data": (await answer.aread()).decode()}
        return
    event: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if line and name:
            event[name] = value
        elif event:
            yield event
            event = {}
