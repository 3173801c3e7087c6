"""Access to the HTTP endpoints: the user, the Host, the Origin and the token of every request are checked first.

A hub without credentials serves only users that it knows by their uid; see ``PeerUids`` (SEC-10). A hub with
credentials serves a valid one from any user: it is the better proof, and a proxy on this machine has a user of its own.

A page in a browser can send requests to a loopback address, also under a name of its own (DNS rebinding): so the
Host must be an allowed one, and so must an Origin. Beyond loopback every caller needs a token or a JWT that
verifies. The control API and the status page have tokens of their own; a caller's token does not open them.

Wrong credentials are counted for every path, for each peer and in all, and answered late where there are many (SEC-11).
A credential is always looked at: behind a proxy, strangers and users have one address, and a token that was renewed a
moment ago is as unknown as a guess. What is limited is the work for wrong ones. One request of a connection waits for
the answer to the one before it, and connections are limited: so an answer that comes late bounds the guesses. A valid
credential never waits.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.access.connections import Admission
from holdfast.access.jwt import KEY_SET_PATH, METADATA_PATH, ProtectedResource
from holdfast.access.principals import GATEWAY_SECRET_HEADER, LOCAL, HubPrincipals, Principal, TokenPolicy
from holdfast.access.quotas import RETRY_SECONDS, QuotaExceeded, Quotas

__all__ = [
    "DELAY_SECONDS",
    "FAILURES",
    "LONG_DELAY_SECONDS",
    "LOOPBACK_HOSTS",
    "MOST_FAILURES",
    "WINDOW_SECONDS",
    "AccessRules",
    "Guard",
    "RefusalKind",
    "Refused",
    "WrongCredentials",
]

RefusalKind: TypeAlias = Literal["user", "unknown_user", "left", "login", "certificate", "too_many_logins", "quota"]
"""Why a client was refused: another user of this machine, or one that is not known, a wrong credential, a client
certificate that does not verify, one of too many wrong credentials, or a used up quota."""

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")

OPEN_PATHS = frozenset({"/healthz", "/readyz", KEY_SET_PATH})
"""Paths that need no token: they say that the hub runs, or what its signatures are checked with, and nothing about its
servers."""

PATHS_BY_ADDRESS = OPEN_PATHS | {"/metrics"}
"""Paths that an address may be used for, and not only a known name.

Prometheus, the kubelet and balancers use the address of each hub. A page that rebinds its name to the hub's address
cannot: its Host is that name.
"""


@dataclass(frozen=True)
class Refused:
    """Why a request may not be served."""

    status: int
    reason: str
    hint: str = ""
    challenge: str = ""
    retry_after: int = 0
    """Seconds until the request may be repeated; 0 if nothing is said about it."""

    @property
    def body(self) -> dict[str, str]:
        """What its sender is told."""
        return {"error": self.reason} | ({"hint": self.hint} if self.hint else {})

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        challenge = {"www-authenticate": self.challenge} if self.challenge else {}
        return challenge | ({"retry-after": str(self.retry_after)} if self.retry_after else {})


Report: TypeAlias = Callable[[RefusalKind, str, str, str], None]
"""Called for a refusal with its kind, the source, the principal, and the quota."""


class AccessRules:
    """Who may send requests: which users of this machine, by which host names, from which origins, with which tokens.

    ``uids`` are the users that may connect. None for a hub that looks at credentials instead. With
    ``client_certificates`` a caller needs a verified certificate too. ``allowed_hosts`` of None are all: for a listener
    that no browser can use. ``resource`` is what a client without a token is told, where an issuer gives tokens.
    """

    def __init__(
        self,
        tokens: TokenPolicy | HubPrincipals | None,
        allowed_hosts: Collection[str] | None,
        *,
        uids: Collection[int] | None = None,
        client_certificates: bool = False,
        quotas: Quotas | None = None,
        resource: ProtectedResource | None = None,
        report: Report = lambda *_: None,
    ) -> None:
        self._tokens = tokens
        self._resource = resource
        # An empty name would accept a request without a Host.
        self._hosts = frozenset(host.lower() for host in allowed_hosts if host) if allowed_hosts is not None else None
        self._uids = frozenset(uids) if uids is not None else None
        self._client_certificates = client_certificates
        self.quotas = quotas or Quotas()
        self.report = report
        self._wrong = WrongCredentials()

    async def check(
        self,
        headers: Mapping[str, str],
        *,
        open_to_all: bool = False,
        client_verified: bool = False,
        client_names: frozenset[str] = frozenset(),
        admission: Admission | None = None,
        by_address: bool = False,
        path: str = "",
    ) -> Principal | Refused:
        """The principal of a request, ``local`` where no credentials are required, or why it is refused.

        ``headers`` are by lower-case name. ``client_verified`` says whether TLS verified a certificate of the peer.
        ``client_names`` are the names in it. ``admission`` is the place of the connection. With ``by_address`` the Host
        may be any address. ``path`` is the endpoint that is asked for, as it was sent; empty for the hub itself.
        """
        if self._uids is not None and (admission is None or admission.peer.uid not in self._uids):
            return self._foreign(admission)
        if self._hosts is not None:
            host, origin = headers.get("host", ""), headers.get("origin")
            if (refused := _other_host(host, origin, self._hosts, by_address)) is not None:
                return refused
        if open_to_all:
            return LOCAL
        if self._client_certificates and not client_verified:
            return Refused(403, "a client certificate is required", hint="use one of the authority in --tls-client-ca")
        principal: Principal | None = LOCAL
        if self._tokens is not None:
            principal = await self._tokens.identify(
                headers, client_verified=client_verified, client_names=client_names, path=path
            )
        if principal is None:
            if headers.get("authorization") or headers.get(_SECRET_HEADER):
                await self.login_failed(admission)
            return Refused(401, "a valid bearer token is required", challenge=self._challenge(headers, path))
        if path and self._resource is not None and (challenge := self._resource.step_up(principal, path)):
            hint = "log in again with the scopes that the challenge names"
            return Refused(403, "the token has no scope that allows anything here", hint=hint, challenge=challenge)
        if admission is not None and admission.principal is None:
            return self._counted(admission, principal)
        return principal

    def _challenge(self, headers: Mapping[str, str], path: str) -> str:
        if self._resource is None:
            return "Bearer"
        return self._resource.challenge(path, error="invalid_token" if headers.get("authorization") else "")

    async def login_failed(self, admission: Admission | None) -> None:
        """Note a wrong credential, and wait as long as its answer has to wait."""
        seconds = self._wrong.count(admission.key) if admission is not None else 0.0
        kind: RefusalKind = "too_many_logins" if seconds else "login"
        self.report(kind, admission.peer.name if admission is not None else "?", "", "")
        if seconds:
            await asyncio.sleep(seconds)

    def _foreign(self, admission: Admission | None) -> Refused:
        uid = admission.peer.uid if admission is not None else None
        left = admission is not None and admission.peer.left
        kind: RefusalKind = "left" if left else "user" if uid is not None else "unknown_user"
        self.report(kind, admission.peer.name if admission is not None else "?", "", "")
        if uid is None:
            reason = "the user of this connection cannot be determined"
            return Refused(403, reason, hint="start the hub with --token-file FILE, and send that token")
        return Refused(
            403,
            f"this hub does not serve the user with uid {uid}",
            hint=f"start the hub with --allow-uid {uid}, or with --token-file FILE",
        )

    def _counted(self, admission: Admission, principal: Principal) -> Principal | Refused:
        """Count a connection for its first principal. One gateway, or one hub, has the connections of all its users."""
        for_others = principal.source in ("gateway", "hub")
        most = None if for_others else self.quotas.limits.connections
        if admission.accepted(principal.source if for_others else principal.name, most):
            return principal
        exceeded = QuotaExceeded("connections", self.quotas.limits.connections, RETRY_SECONDS)
        self.report("quota", admission.peer.name, principal.name, exceeded.quota)
        return Refused(429, exceeded.message, retry_after=exceeded.retry_after)


FAILURES: Final = 20
WINDOW_SECONDS: Final = 60.0
DELAY_SECONDS: Final = 1.0
"""After so many wrong credentials in so many seconds, further ones of a peer are answered after this time. A person, or
a client after a rotation, needs fewer."""

MOST_FAILURES: Final = 1_000
LONG_DELAY_SECONDS: Final = 5.0
"""The same for all peers together."""

MOST_PEERS: Final = 4_096
"""How many peers are remembered; the one that failed least recently is forgotten first."""


class WrongCredentials:
    """The wrong credentials of the last minute."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[str, deque[float]] = {}
        self._all: deque[float] = deque(maxlen=MOST_FAILURES)

    def count(self, peer: str) -> float:
        """Note a wrong credential; after how many seconds it is answered."""
        now = self._clock()
        times = self._failed.pop(peer, None) or deque(maxlen=FAILURES)
        many, in_all = self._is_full(times, now), self._is_full(self._all, now)
        times.append(now)
        self._all.append(now)
        self._failed[peer] = times
        if len(self._failed) > MOST_PEERS:
            del self._failed[next(iter(self._failed))]
        return LONG_DELAY_SECONDS if in_all else DELAY_SECONDS if many else 0.0

    @staticmethod
    def _is_full(times: deque[float], now: float) -> bool:
        return len(times) == times.maxlen and times[0] > now - WINDOW_SECONDS


_SECRET_HEADER = GATEWAY_SECRET_HEADER.lower()


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
        known = scope.get("extensions") or {}
        admission: Admission | None = known.get("holdfast.admission")
        beside = self._is_beside(scope)
        headers = Headers(scope=scope)
        found = await self._rules.check(
            headers,
            open_to_all=beside or scope["path"] in OPEN_PATHS or scope["path"].startswith(METADATA_PATH),
            client_verified=bool(known.get("holdfast.client_verified")),
            client_names=known.get("holdfast.client_names", frozenset()),
            admission=admission,
            by_address=scope["path"] in PATHS_BY_ADDRESS,
        )
        if beside and not isinstance(found, Refused):
            send = self._watched(send, admission, headers.get("authorization", ""))
        if isinstance(found, Refused):
            await JSONResponse(found.body, status_code=found.status, headers=found.headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _watched(self, send: Send, admission: Admission | None, credential: str) -> Send:
        """Note whether a route that checks its own tokens accepted the credential."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                # A wrong sign-in code comes without this header, and its answer has no challenge.
                if status == 401 and (credential or not _has_challenge(message)):
                    await self._rules.login_failed(admission)
                elif status < 400 and credential and admission is not None:
                    admission.accepted("control", None)
            await send(message)

        return watched

    def _is_beside(self, scope: Scope) -> bool:
        """Whether one of the routes serves it that check their own tokens."""
        return any(route.matches(scope)[0] is not Match.NONE for route in self._beside)


def _has_challenge(message: Message) -> bool:
    return any(name.lower() == b"www-authenticate" for name, _ in message.get("headers", ()))


_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^\s:\[\]@/?#,]*[^\s:\[\]@/?#,.])\.?(?::\d{0,5})?")


@lru_cache(maxsize=256)
def _other_host(host: str, origin: str | None, hosts: frozenset[str], by_address: bool) -> Refused | None:
    """The refusal of a request for another host, or from a page of another origin; None if it is for this one."""
    named = "" if "," in host else _host_in(host)
    if named not in hosts and not (by_address and _is_address(named)):
        return Refused(421, "this Host is not served here", hint="allow it with --allow-host")
    if origin is not None and _host_of_origin(origin) not in hosts:
        return Refused(403, "this Origin may not call this hub", hint="allow its host with --allow-host")
    return None


def _host_in(authority: str) -> str:
    """Return the host without its port, in lower case; empty if it is not a host and a port."""
    found = _AUTHORITY.fullmatch(authority.lower())
    return found["host"] if found is not None else ""


def _is_address(host: str) -> bool:
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _host_of_origin(origin: str) -> str:
    """Return the host of an origin; empty if it is not an origin. A browser never sends user info in one."""
    try:
        authority = urlsplit(origin).netloc
    except ValueError:
        return ""
    return "" if "@" in authority else _host_in(authority)
