"""Access to the HTTP endpoints: the Host, the Origin and the token of every request are checked first.

A page in a browser can send requests to a loopback address, also under a name of its own (DNS rebinding): so the
Host must be an allowed one, and so must an Origin. Beyond loopback every caller needs a token or a JWT that
verifies. The control API and the status page have tokens of their own; a caller's token does not open them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.front.access.principals import LOCAL, Principal, TokenPolicy

__all__ = ["LOOPBACK_HOSTS", "AccessRules", "Guard", "Refused"]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths that need no token: they say that the hub runs, and nothing about its servers."""


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

    async def check(
        self, headers: Mapping[str, str], *, open_to_all: bool = False, client_verified: bool = False
    ) -> Principal | Refused:
        """The principal of a request, ``local`` where no credentials are required, or why it is refused.

        ``headers`` are by lower-case name. ``client_verified`` says whether TLS verified a certificate of the peer.
        """
        host = headers.get("host", "")
        if "," in host or _host_in(host) not in self._hosts:
            return Refused(421, "this Host is not served here", hint="allow it with --allow-host")
        origin = headers.get("origin")
        if origin is not None and _host_of_origin(origin) not in self._hosts:
            return Refused(403, "this Origin may not call this hub", hint="allow its host with --allow-host")
        if self._tokens is None or open_to_all:
            return LOCAL
        principal = await self._tokens.identify(headers, client_verified=client_verified)
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


@lru_cache(maxsize=256)
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
