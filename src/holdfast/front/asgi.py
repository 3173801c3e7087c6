"""The paths that are no MCP endpoint: one request through the ASGI application behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.front.request_parser import BadRequest
from holdfast.front.requests import BODY_SECONDS, AnswerSink, Gone, Request, TooLarge

__all__ = ["AsgiExchange"]

LARGEST_BODY = 64 * 1024
"""Bytes. A body is read before its sender is known, and the control API takes less."""


class AsgiExchange:
    """One request through the ASGI application."""

    def __init__(
        self,
        out: AnswerSink,
        request: Request,
        app: Callable[..., Awaitable[None]],
        refuse: Callable[[int], None],
    ) -> None:
        self._out = out
        self._refuse = refuse
        """Ends the connection with a status."""
        self._request = request
        self._app = app
        self._gone = asyncio.Event()
        self._head: bytes | None = None
        self._status = 500
        self._begun = False
        self._done = False
        self._body = b""
        self._body_given = False

    async def run(self, transport: asyncio.BaseTransport, state: dict[str, Any]) -> None:
        """Give it to the application, and its answer to the client."""
        request, out = self._request, self._out
        try:
            self._body = await request.body(LARGEST_BODY, within=BODY_SECONDS)
        except TooLarge:
            out.write_plain(request, 413, b"", b"")
            return
        except BadRequest as exc:
            self._refuse(exc.status)
            return
        except Gone:
            return
        try:
            with request.ending_with_client(self._gone.set):
                await self._app(_scope(request, transport, state), self._receive, self._send)
        except Exception:  # noqa: BLE001 - the application has logged it; its client gets an answer
            if not self._begun:
                out.write_plain(request, 500, b"Internal Server Error", b"content-type: text/plain\r\n")
                return
        if not self._done:
            request.keep_alive = False

    async def _receive(self) -> dict[str, Any]:
        if not self._body_given:
            self._body_given = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            given = message.get("headers", ())
            self._head = b"".join(b"%b: %b\r\n" % (name, value) for name, value in given if name != b"content-length")
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        out, request = self._out, self._request
        if not self._begun:
            self._begun = True
            assert self._head is not None  # noqa: S101 - an application starts its answer first
            if not more:
                self._done = True
                out.write_plain(request, self._status, body, self._head)
                return
            out.write_head(request, self._head, self._status)
        out.write_chunk(request, body)
        if not more:
            self._done = True
            out.write_end(request)
        await out.drained()


def _scope(request: Request, transport: asyncio.BaseTransport, state: dict[str, Any]) -> dict[str, Any]:
    info = transport.get_extra_info
    client, server = info("peername"), info("sockname")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.http_version,
        "server": tuple(server[:2]) if isinstance(server, tuple) else None,
        "client": tuple(client[:2]) if isinstance(client, tuple) else None,
        "scheme": "https" if info("sslcontext") else "http",
        "method": request.method,
        "root_path": "",
        "path": request.path,
        "raw_path": request.head.raw_path,
        "query_string": request.head.query,
        "headers": [*request.head.raw_headers],
        "state": state.copy(),
        "extensions": {
            "holdfast.admission": request.admission,
            "holdfast.client_verified": request.client_verified,
            "holdfast.client_names": request.client_names,
        },
    }
