"""Continue a client's trace: the trace context in the headers becomes the parent of the hub's spans."""

from __future__ import annotations

from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.hub import tracing

__all__ = ["TraceContext"]


class TraceContext:
    """ASGI middleware that attaches the trace context of the headers while a request is served."""

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
