"""Access to the HTTP endpoints: the Host, the Origin and the token of every request are checked first.

A page in a browser can send requests to a loopback address, also under a name of its own (DNS rebinding): so the
Host must be an allowed one, and so must an Origin. Beyond loopback every caller needs a token or a JWT that
verifies. The control API and the status page have tokens of their own; a caller's token does not open them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.front.access.principals import SCOPE_KEY, TokenPolicy

__all__ = ["LOOPBACK_HOSTS", "Guard"]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths that need no token: they say that the hub runs, and nothing about its servers."""


class Guard:
    """ASGI middleware that refuses requests without access, and says why."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: TokenPolicy | None,
        allowed_hosts: Collection[str],
        beside: Sequence[BaseRoute] = (),
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._beside = beside
        # An empty name would accept a request without a Host.
        self._hosts = frozenset(host.lower() for host in allowed_hosts if host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = await self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if not self._is_allowed(_host_in(headers.get("host", ""))):
            return _refused(421, "this Host is not served here", hint="allow it with --allow-host")
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(_host_of_origin(origin)):
            return _refused(403, "this Origin may not call this hub", hint="allow its host with --allow-host")
        if self._tokens is None or scope["path"] in OPEN_PATHS or self._is_beside(scope):
            return None
        principal = await self._tokens.identify(headers, client_verified=_client_verified(scope))
        if principal is None:
            return _refused(401, "a valid bearer token is required", headers={"www-authenticate": "Bearer"})
        scope[SCOPE_KEY] = principal
        # With this the SDK binds a session to the user who opened it.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal.name, scopes=[]))
        return None

    def _is_beside(self, scope: Scope) -> bool:
        """Whether one of the routes serves it that check their own tokens."""
        return any(route.matches(scope)[0] is not Match.NONE for route in self._beside)

    def _is_allowed(self, host: str) -> bool:
        return host in self._hosts


def _client_verified(scope: Scope) -> bool:
    """Whether TLS verified a certificate of the peer (the ASGI extension for TLS)."""
    tls = (scope.get("extensions") or {}).get("tls") or {}
    return bool(tls.get("client_cert_chain")) and not tls.get("client_cert_error")


def _host_in(authority: str) -> str:
    """Return the host without its port, in lower case."""
    host = authority.lower().rstrip(".")
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".")


def _host_of_origin(origin: str) -> str:
    """Return the host of an origin; empty if it is not an origin. A browser never sends user info in one."""
    try:
        authority = urlsplit(origin).netloc
    except ValueError:
        return ""
    return "" if "@" in authority else _host_in(authority)


def _refused(status: int, why: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> JSONResponse:
    body: dict[str, Any] = {"error": why}
    if hint:
        body["hint"] = hint
    return JSONResponse(body, status_code=status, headers=headers)
