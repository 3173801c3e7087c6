"""Who may come in: the Host, the Origin and the token of every HTTP request are checked before anything else.

A page in a browser can make requests to a loopback address, also under a name of its own (DNS rebinding):
so the Host must be one of ours and an Origin, where there is one, must be too. Beyond loopback a caller
must show a token, or a JWT that can be verified; nobody else is served. What stands beside the MCP
endpoints (the control API, the status page) has tokens of its own, which a caller's do not replace.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import UsageError

__all__ = ["LOOPBACK_HOSTS", "Guard", "TokenPolicy", "Verify"]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""What a probe may ask without a token: they tell that the hub is there, and nothing of what is behind it."""

Verify: TypeAlias = Callable[[str], Awaitable[str | None]]
"""The subject of a token that verifies, or None."""


@dataclass(frozen=True, kw_only=True)
class TokenPolicy:
    """Which bearer tokens are accepted. One at least must be, else nobody could come in."""

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Token by the name of its holder: ``{"ci": "s3cret"}``."""
    verify: Verify | None = field(default=None, repr=False)
    """Checks any other token, such as a signed JWT: signature, issuer, audience and time are its matter."""

    def __post_init__(self) -> None:
        if not self.tokens and self.verify is None:
            raise UsageError("a token policy without a token would let nobody in")
        if not all(self.tokens.values()):
            raise UsageError("an empty token would let everybody in", hint="give each token a value")

    async def principal(self, token: str) -> str | None:
        """Whose token it is; None if it is nobody's."""
        found: str | None = None
        for name, known in self.tokens.items():
            if hmac.compare_digest(known.encode(), token.encode("utf-8", "surrogateescape")):
                found = name
        if found is None and self.verify is not None:
            return await self.verify(token)
        return found


class Guard:
    """ASGI middleware: refuses what may not come in, and says why."""

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
        # Without a name there is no host: an empty one would let in whoever sends none.
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
        if not self._is_ours(_host_in(headers.get("host", ""))):
            return _refused(421, "this Host is not served here", hint="name it with --allow-host")
        origin = headers.get("origin")
        if origin is not None and not self._is_ours(_host_of_origin(origin)):
            return _refused(403, "this Origin may not call here", hint="name its host with --allow-host")
        if self._tokens is None or scope["path"] in OPEN_PATHS or self._is_beside(scope):
            return None
        kind, _, token = headers.get("authorization", "").partition(" ")
        principal = await self._tokens.principal(token.strip()) if kind.lower() == "bearer" else None
        if principal is None:
            return _refused(401, "a valid bearer token is needed", headers={"www-authenticate": "Bearer"})
        scope["holdfast.principal"] = principal
        # The SDK lets a session be used only by the user who opened it.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))
        return None

    def _is_beside(self, scope: Scope) -> bool:
        """Whether it goes where a token of another kind is asked for; the same routes serve it then."""
        return any(route.matches(scope)[0] is not Match.NONE for route in self._beside)

    def _is_ours(self, host: str) -> bool:
        return host in self._hosts


def _host_in(authority: str) -> str:
    """The host without its port, as it is compared."""
    host = authority.lower().rstrip(".")
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".")


def _host_of_origin(origin: str) -> str:
    """Empty for what is no origin: a browser sends no user's name in one."""
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
