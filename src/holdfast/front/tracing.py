"""A client's trace goes on here: its headers are the parent of whatever its request starts, if anybody wants spans."""

from __future__ import annotations

from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.hub import tracing

__all__ = ["TraceContext"]


class TraceContext:
    """ASGI middleware: the trace context of a request's headers is that of the task that serves it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request."""
        if scope["type"] != "http" or not tracing.is_on():
            await self._app(scope, receive, send)
            return
        token = attach(extract(Headers(scope=scope)))
        try:
            await self._app(scope, receive, send)
        finally:
            detach(token)
