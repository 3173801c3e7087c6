"""Makes the fixture a server of one era alone, as servers in the field are: the SDK's own speaks both at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Era", "era_gate", "gated_streams"]

Era = Literal["both", "legacy", "modern"]

_HEADER = b"mcp-protocol-version"
_REFUSED: dict[Era, tuple[str, ...]] = {"both": (), "legacy": ("server/discover",), "modern": ("initialize",)}


def era_gate(app: ASGIApp, era: Era) -> ASGIApp:
    """The app; requests of the era that it does not know get the answer that a server without it gives."""
    if era == "both":
        return app

    async def gate(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _knows(era, dict(scope["headers"]).get(_HEADER, b"").decode("latin-1")):
            await app(scope, receive, send)
        else:
            await _refuse(send, _refusal(era))

    return gate


@asynccontextmanager
async def gated_streams(read: Any, write: Any, *, era: Era) -> AsyncIterator[tuple[Any, Any]]:
    """The streams; the other era's first request is answered before the server sees it."""
    passed, received = anyio.create_memory_object_stream[SessionMessage | Exception]()

    async def sift() -> None:
        async with passed:
            async for item in read:
                message = item.message if isinstance(item, SessionMessage) else None
                if isinstance(message, types.JSONRPCRequest) and message.method in _REFUSED[era]:
                    error = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=_refusal(era))
                    await write.send(SessionMessage(error))
                else:
                    await passed.send(item)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sift)
        yield received, write
        tasks.cancel_scope.cancel()


def _knows(era: Era, version: str) -> bool:
    return version in MODERN_PROTOCOL_VERSIONS if era == "modern" else version in ("", *HANDSHAKE_PROTOCOL_VERSIONS)


def _refusal(era: Era) -> types.ErrorData:
    if era == "legacy":
        return types.ErrorData(code=types.METHOD_NOT_FOUND, message="Method not found")
    return types.ErrorData(
        code=types.UNSUPPORTED_PROTOCOL_VERSION,
        message="Unsupported protocol version",
        data={"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": ""},
    )


async def _refuse(send: Send, error: types.ErrorData) -> None:
    body = {"jsonrpc": "2.0", "id": None, "error": error.model_dump(by_alias=True, exclude_none=True)}
    await send({"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
