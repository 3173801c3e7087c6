"""Access to the HTTP endpoints: the Host, the Origin and the token of every request are checked first.

A page in a browser can send requests to a loopback address, also under a name of its own (DNS rebinding): so the
Host must be an allowed one, and so must an Origin. Beyond loopback every caller needs a token or a JWT that
verifies. The control API and the status page have tokens of their own; a caller's token does not open them.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import UsageError

__all__ = ["LOOPBACK_HOSTS", "AccessRules", "Guard", "Refused", "TokenPolicy", "Verify"]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths that need no token: they say that the hub runs, and nothing about its servers."""

Verify: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Returns the subject of a token that verifies, or None."""


@dataclass(frozen=True, kw_only=True)
class TokenPolicy:
    """Which bearer tokens are accepted: at least one, or a verifier."""

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Token by the name of its holder: ``{"ci": "s3cret"}``."""
    verify: Verify | None = field(default=None, repr=False)
    """Verifies any other token, such as a JWT: its signature, issuer, audience and time."""

    def __post_init__(self) -> None:
        if not self.tokens and self.verify is None:
            raise UsageError("a token policy needs a token or a verifier")
        if not all(self.tokens.values()):
            raise UsageError("an empty token would accept every caller", hint="give each token a value")

    async def principal(self, token: str) -> str | None:
        """Return the name of the token's holder; None if the token is unknown."""
        found: str | None = None
        for name, known in self.tokens.items():
            if hmac.compare_digest(known.encode(), token.encode("utf-8", "surrogateescape")):
                found = name
        if found is None and self.verify is not None:
            return await self.verify(token)
        return found


@dataclass(frozen=True)
class Refused:
    """Why a request may not be served."""

    status: int
    reason: str
    hint: str = ""
    challenge: str = ""

    @property
    def body(self) -> dict[str, str]:
        """What its sender is told."""
        return {"error": self.reason} | ({"hint": self.hint} if self.hint else {})


class AccessRules:
    """Who may send requests: by which host names, from which origins, with which tokens."""

    def __init__(self, tokens: TokenPolicy | None, allowed_hosts: Collection[str]) -> None:
        self._tokens = tokens
        # An empty name would accept a request without a Host.
        self._hosts = frozenset(host.lower() for host in allowed_hosts if host)

    async def check(self, headers: Mapping[str, str], *, open_to_all: bool = False) -> str | Refused | None:
        """The principal of a request, None where no token is required, or why it is refused."""
        host = headers.get("host", "")
        if "," in host or _host_in(host) not in self._hosts:
            return Refused(421, "this Host is not served here", hint="allow it with --allow-host")
        origin = headers.get("origin")
        if origin is not None and _host_of_origin(origin) not in self._hosts:
            return Refused(403, "this Origin may not call this hub", hint="allow its host with --allow-host")
        if self._tokens is None or open_to_all:
            return None
        kind, _, token = headers.get("authorization", "").partition(" ")
        principal = await self._tokens.principal(token.strip()) if kind.lower() == "bearer" else None
        return principal or Refused(401, "a valid bearer token is required", challenge="Bearer")


class Guard:
    """ASGI middleware that refuses requests without access, and says why."""

    def __init__(self, app: ASGIApp, *, rules: AccessRules, beside: Sequence[BaseRoute] = ()) -> None:
        self._app = app
        self._rules = rules
        self._beside = beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        open_to_all = scope["path"] in OPEN_PATHS or self._is_beside(scope)
        found = await self._rules.check(Headers(scope=scope), open_to_all=open_to_all)
        if isinstance(found, Refused):
            challenge = {"www-authenticate": found.challenge} if found.challenge else None
            await JSONResponse(found.body, status_code=found.status, headers=challenge)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_beside(self, scope: Scope) -> bool:
        """Whether one of the routes serves it that check their own tokens."""
        return any(route.matches(scope)[0] is not Match.NONE for route in self._beside)


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
