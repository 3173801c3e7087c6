"""Who sits at a browser: the same principal as the one whose MCP client calls.

A browser is known by one of these, in this order:

- the trusted gateway in front of the hub names the user in its headers;
- a session of this module, in a cookie: begun by a sign-in at the issuer (``/signin``), or by a caller's own token that
  was typed in (``/signin/token``);
- on a hub without credentials, by the uid of the connection: that is ``local``, and the guard has checked it before.

The cookie holds the session itself, sealed with the hub's keys, so every worker and every replica reads it. It holds no
credential: of a token it holds the hash, which is looked up again for each request, so that a removed or expired token
ends the session. A sign-out is remembered where the ends of MCP sessions are.

What must never happen: a page of another site acts for the person. A browser sends cookies by itself, so the cookie is
``SameSite=Lax``, and a request that changes something must come from a page of this hub (``is_own_page``). Nor may one
site send a browser on to another after a sign-in: only a path of this hub is gone to.
"""

from __future__ import annotations

import hashlib
import html
import json
import logging
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.access import LOCAL, AuditTrail, JwtVerifier, Principal, TokenPolicy
from holdfast.auth import IdTokens, PendingSignIn, SignInClient
from holdfast.control.server.status_page import HEADERS
from holdfast.errors import HoldfastError, LoginFailed
from holdfast.keys import KeyRing

__all__ = [
    "NOT_KEPT",
    "BrowserIdentity",
    "EndedSessions",
    "Identified",
    "SealedCookies",
    "read_fields",
    "shell",
    "source_of",
]

log = logging.getLogger("holdfast.control")

SESSION_SECONDS: Final = 12 * 3600.0
"""How long a browser stays signed in: a working day."""

PENDING_SECONDS: Final = 600.0
"""How long a person has for the pages of the issuer."""

LONGEST_COOKIE: Final = 3_800
"""Characters. Browsers keep 4,096 bytes of a cookie, with its name and its attributes."""

LARGEST_SESSION: Final = 64 * 1024
LARGEST_FORM: Final = 32 * 1024
LONGEST_PATH: Final = 2_048

_Kind: TypeAlias = Literal["session", "signin", "connect"]

_SECONDS: Final[Mapping[_Kind, float]] = {
    "session": SESSION_SECONDS,
    "signin": PENDING_SECONDS,
    "connect": PENDING_SECONDS,
}


class EndedSessions(Protocol):
    """Where the ends of sessions are kept."""

    async def end_named(self, session: bytes, *, until: float) -> None:
        """Remember until a time that a session was ended."""

    async def is_ended(self, session: bytes) -> bool:
        """Whether a session was ended."""


@dataclass(frozen=True, kw_only=True)
class Identified:
    """Who sends a request, and by what the hub knows it."""

    principal: Principal
    by: Literal["credential", "cookie", "connection"]
    """Headers that the sender added itself, a cookie that a browser adds, or the user of the connection."""
    until: float | None = None
    """When a session ends, in seconds since the epoch."""


class SealedCookies:
    """What this hub keeps in a browser: only the hub can read it, only for its purpose, and only for a time."""

    def __init__(self, base: str, ring: Callable[[], KeyRing], wall: Callable[[], float]) -> None:
        self._base = base
        self._ring = ring
        self._wall = wall
        parts = urlsplit(base)
        self._secure = parts.scheme == "https"
        # Cookies of one host are shared by all its ports, and a machine may run several hubs.
        self._name = "__Host-holdfast" if self._secure else f"holdfast-{parts.port or 80}"

    def __repr__(self) -> str:
        return f"<SealedCookies {self._name}>"

    def put(self, response: Response, kind: _Kind, content: Mapping[str, Any]) -> None:
        """Give the browser a content. Raises ``ValueError`` if it is too large for a cookie."""
        seconds = _SECONDS[kind]
        packed = zlib.compress(json.dumps({**content, "until": self._wall() + seconds}).encode(), 9)
        # Another hub with the same keys may have another issuer: the address is part of what is sealed.
        value = self._ring().seal_text(packed, purpose=f"browser {kind}", about=self._base.encode())
        if len(value) > LONGEST_COOKIE:
            raise ValueError(f"{len(value)} characters")
        self._set(response, kind, value, int(seconds))

    def drop(self, response: Response, kind: _Kind) -> None:
        """Take a content from the browser."""
        self._set(response, kind, "", 0)

    def read(self, request: Request, kind: _Kind) -> dict[str, Any] | None:
        """What this hub gave the browser; None if there is nothing, or it expired."""
        cookie = request.cookies.get(f"{self._name}-{kind}", "")
        if not cookie or len(cookie) > LONGEST_COOKIE:
            return None
        packed = self._ring().open_text(cookie, purpose=f"browser {kind}", about=self._base.encode())
        if packed is None:
            return None
        # Bounded, although only this hub can have sealed it: a key may be shared with a hub of another version.
        content: dict[str, Any] = json.loads(zlib.decompressobj().decompress(packed, LARGEST_SESSION))
        return content if content["until"] > self._wall() else None

    def _set(self, response: Response, kind: _Kind, value: str, seconds: int) -> None:
        response.set_cookie(
            f"{self._name}-{kind}",
            value,
            max_age=seconds,
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="lax",
        )


class BrowserIdentity:
    """Signs browsers in, and says who they are.

    ``base`` is the address of the hub that browsers use. Without an ``issuer`` people sign in with the token of their
    own client; ``tokens`` of None are a hub without credentials. ``id_tokens`` keeps the ID
    tokens of people who sign in.
    """

    def __init__(  # noqa: PLR0913 - each part of a sign-in is given
        self,
        base: str,
        *,
        ring: Callable[[], KeyRing],
        ended: EndedSessions,
        tokens: TokenPolicy | None,
        issuer: SignInClient | None = None,
        id_tokens: IdTokens | None = None,
        people: JwtVerifier | None = None,
        audit: AuditTrail | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._base = base.rstrip("/")
        self._cookies = SealedCookies(self._base, ring, wall)
        self._ended = ended
        self.tokens = tokens
        """The credentials of callers; None for a hub that asks for none."""
        self._issuer = issuer
        self._id_tokens = id_tokens
        self._wall = wall
        self._people = people
        self._audit = audit

    def __repr__(self) -> str:
        return f"<BrowserIdentity of {self._base} by {self._issuer or 'tokens'}>"

    @property
    def by_issuer(self) -> bool:
        """Whether people sign in at an issuer."""
        return self._issuer is not None

    def sign_in_address(self, to: str) -> str:
        """Where to send a browser that is not known; it comes back to this path of the hub."""
        return f"{self._base}/signin?{urlencode({'to': to})}"

    async def identify(self, request: Request) -> Identified | None:
        """Who sends a request; None if that is not known."""
        if self.tokens is None:
            return Identified(principal=LOCAL, by="connection")
        known = request.scope.get("extensions") or {}
        principal = await self.tokens.identify(
            request.headers,
            client_verified=bool(known.get("holdfast.client_verified")),
            client_names=known.get("holdfast.client_names", frozenset()),
        )
        if principal is not None:
            return Identified(principal=principal, by="credential")
        return await self._in_cookie(request)

    def is_own_page(self, request: Request) -> bool:
        """Whether a request comes from a page of this hub: a browser names the origin of each that is no GET."""
        try:
            origin = urlsplit(request.headers.get("origin", "")).netloc.lower()
        except ValueError:
            return False
        # Behind a gateway the Host may be another one than that of the address which the browser uses.
        return bool(origin) and origin in (request.headers.get("host", "").lower(), urlsplit(self._base).netloc.lower())

    def routes(self) -> Sequence[Route]:
        """The routes of signing in and out; they need no credential."""
        return (
            Route("/signin", self._begin),
            Route("/signin/callback", self._come_back),
            Route("/signin/token", self._by_token, methods=["POST"]),
            Route("/signout", self._sign_out, methods=["POST"]),
        )

    # Signing in at the issuer.

    async def _begin(self, request: Request) -> Response:
        to = _own_path(request.query_params.get("to", "/"))
        if self._issuer is None:
            return _form(to)
        try:
            address, pending = await self._issuer.begin()
        except LoginFailed as failed:
            return self._failed(request, failed, to)
        response = RedirectResponse(address, status_code=303, headers=NOT_KEPT)
        kept = {"state": pending.state, "nonce": pending.nonce, "verifier": pending.verifier, "to": to}
        # In the browser, not here: any worker or replica may get the answer of the issuer.
        self._cookies.put(response, "signin", kept)
        return response

    async def _come_back(self, request: Request) -> Response:
        kept = self._cookies.read(request, "signin")
        if self._issuer is None or self._people is None or kept is None:
            failed = LoginFailed("this browser did not begin a sign-in here", hint="sign in again")
            return self._failed(request, failed, "/")
        pending = PendingSignIn(state=kept["state"], nonce=kept["nonce"], verifier=kept["verifier"])
        try:
            given = await self._issuer.finish(pending, dict(request.query_params))
            principal = self._people.principal(given.claims)
            if principal is None:
                raise LoginFailed("the ID token names no user", hint="--jwt-user-claim names the claim that does")
        except LoginFailed as failed:
            return self._failed(request, failed, kept["to"])
        # Made here, because the ID token is kept under it, and ends with it.
        session = secrets.token_hex(16)
        if self._id_tokens is not None:
            until = self._wall() + SESSION_SECONDS
            try:
                await self._id_tokens.keep(principal.name, given, session=session, until=until)
            except HoldfastError as failed:
                # She is signed in all the same: only servers that take identity assertions lack her ID token.
                log.warning("the ID token of a user cannot be kept: %s", failed.message)
        content = {"groups": sorted(principal.groups), "scopes": sorted(principal.scopes), "id": session}
        return self._signed_in(request, principal, content, kept["to"], method="oidc")

    # Signing in with the token of a caller.

    async def _by_token(self, request: Request) -> Response:
        if not self.is_own_page(request):
            return JSONResponse({"error": "this is for pages of this hub"}, status_code=403, headers=NOT_KEPT)
        fields = await read_fields(request)
        token, to = fields.get("token", "").strip(), _own_path(fields.get("to", "/"))
        principal = await self.tokens.principal(token) if self.tokens is not None and token else None
        # The session holds a hash, which is looked up among the tokens of the hub. A JWT is not among them.
        if principal is None or principal.source != "token":
            failed = LoginFailed("that is no token of a caller", hint="use the token that your own client sends")
            return self._failed(request, failed, to)
        content = {"token": hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()}
        return self._signed_in(request, principal, content, to, method="token")

    def _signed_in(
        self, request: Request, principal: Principal, content: Mapping[str, Any], to: str, *, method: str
    ) -> Response:
        if _wants_json(request):
            response: Response = JSONResponse({"principal": principal.name}, headers=NOT_KEPT)
        else:
            response = RedirectResponse(f"{self._base}{to}", status_code=303, headers=NOT_KEPT)
        try:
            self._cookies.put(response, "session", {"id": secrets.token_hex(16), **content, "name": principal.name})
        except ValueError:
            hint = "let it send fewer, such as those that are assigned to this application"
            return self._failed(request, LoginFailed("the issuer names too many groups for a browser", hint=hint), to)
        self._cookies.drop(response, "signin")
        self._record(request, principal.name, method, "done")
        return response

    def _failed(self, request: Request, failed: LoginFailed, to: str) -> Response:
        self._record(request, "", "oidc" if request.method == "GET" else "token", "refused", failed.message)
        # Without a challenge: the guard counts it as a wrong credential.
        status = 401
        if _wants_json(request):
            body = {"error": failed.message, "hint": failed.hint or ""}
            return JSONResponse(body, status_code=status, headers=NOT_KEPT)
        said = f"{failed.message}.{f' {failed.hint}.' if failed.hint else ''}"
        if self._issuer is None:
            return _form(to, said, status)
        again = html.escape(self.sign_in_address(to))
        return shell("Not signed in", said, f'<p><a class="button" href="{again}">Sign in again</a></p>', status)

    async def _sign_out(self, request: Request) -> Response:
        if not self.is_own_page(request):
            return JSONResponse({"error": "this is for pages of this hub"}, status_code=403, headers=NOT_KEPT)
        kept = self._cookies.read(request, "session")
        if kept is not None:
            # A sealed cookie stays valid until its time. That it was ended must be known to all replicas.
            await self._ended.end_named(bytes.fromhex(kept["id"]), until=kept["until"])
            if self._id_tokens is not None:
                try:
                    await self._id_tokens.forget(kept["name"], session=kept["id"])
                except HoldfastError as failed:
                    log.warning("the ID token of a user who signed out cannot be removed: %s", failed.message)
            self._record(request, kept["name"], "sign-out", "done")
        response = JSONResponse({}, headers=NOT_KEPT)
        self._cookies.drop(response, "session")
        return response

    # Sessions.

    async def _in_cookie(self, request: Request) -> Identified | None:
        kept = self._cookies.read(request, "session")
        if kept is None or await self._ended.is_ended(bytes.fromhex(kept["id"])):
            return None
        if "token" in kept:
            # Looked up at each request: a token that was removed from the file ends its sessions too.
            principal = self.tokens.holder(bytes.fromhex(kept["token"])) if self.tokens is not None else None
        else:
            groups, scopes = frozenset(kept["groups"]), frozenset(kept["scopes"])
            principal = Principal(name=kept["name"], groups=groups, scopes=scopes, source="jwt")
        if principal is None or principal.name != kept["name"]:
            return None
        # A hub that was started again for another issuer, or for none, knows none of its people. Groups of the same
        # name may be others there.
        issuer = self._issuer.issuer if self._issuer is not None else None
        if principal.source == "jwt" and (issuer is None or not principal.name.startswith(f"{issuer}#")):
            return None
        return Identified(principal=principal, by="cookie", until=kept["until"])

    def _record(self, request: Request, principal: str, method: str, outcome: str, reason: str = "") -> None:
        if self._audit is None:
            return
        source = source_of(request)
        self._audit.event("sign-in", principal=principal, source=source, method=method, outcome=outcome, reason=reason)


def source_of(request: Request) -> str:
    """Where a request comes from: an address, and the user if it is on this machine."""
    admission = (request.scope.get("extensions") or {}).get("holdfast.admission")
    return admission.peer.name if admission is not None else ""


def _own_path(to: str) -> str:
    """A path of this hub; the status page for anything else, such as an address of another site."""
    fits = to.startswith("/") and not to.startswith(("//", "/\\")) and len(to) <= LONGEST_PATH
    return to if fits and to.isascii() and to.isprintable() and "\\" not in to else "/"


async def read_fields(request: Request) -> dict[str, str]:
    """The fields of a form, or of a JSON object."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > LARGEST_FORM:
            return {}
    try:
        if _wants_json(request):
            found = from_json(data)  # a deep one, and half a surrogate pair, are refused as what is no JSON is
            return {name: value for name, value in found.items() if isinstance(value, str)}
        return dict(parse_qsl(data.decode("ascii"), max_num_fields=10))
    except (ValueError, AttributeError):
        return {}


def _wants_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


# The pages. They work without a script.

NOT_KEPT: Final = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
_PAGE_HEADERS: Final = {
    **HEADERS,
    **NOT_KEPT,
    # With `no-referrer` a browser sends a form with the origin `null`, which no page of this hub has. Other sites get
    # nothing of the address.
    "referrer-policy": "same-origin",
    "content-security-policy": HEADERS["content-security-policy"].replace("form-action 'none'", "form-action 'self'"),
}

_SHELL: Final = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>{title} · Holdfast</title>
  <link rel="icon" href="/static/icon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="/static/style.css">
</head>
<body data-view="sign-in">
  <header class="masthead">
    <div class="brand"><img src="/static/icon.svg" alt="" width="26" height="26"><span>Holdfast</span></div>
  </header>
  <main>
    <section class="sign-in" aria-labelledby="title">
      <h1 id="title">{title}</h1>
      {said}
      {rest}
    </section>
  </main>
</body>
</html>
"""


def _form(to: str, said: str = "", status: int = 200) -> Response:
    rest = f"""<form method="post" action="/signin/token">
        <label for="token">The token of your own client</label>
        <div class="field">
          <input type="hidden" name="to" value="{html.escape(to)}">
          <input id="token" name="token" type="password" autocomplete="off" spellcheck="false" required autofocus>
          <button type="submit" class="primary">Sign in</button>
        </div>
        <p class="fine">It is the token that your MCP client sends to this hub. The hub keeps no copy of it.</p>
      </form>"""
    return shell("Sign in to this hub", said, rest, status)


def shell(title: str, said: str, rest: str, status: int, *, leads_to: str = "") -> Response:
    """A page of the hub. A form on it may lead on to the site of ``leads_to``."""
    note = f'<p class="note" role="alert" data-kind="failed">{html.escape(said)}</p>' if said else ""
    page = _SHELL.format(title=html.escape(title), said=note, rest=rest)
    headers = dict(_PAGE_HEADERS)
    if leads_to:
        site = "{0.scheme}://{0.netloc}".format(urlsplit(leads_to))
        policy = headers["content-security-policy"]
        headers["content-security-policy"] = policy.replace("form-action 'self'", f"form-action 'self' {site}")
    return HTMLResponse(page, status_code=status, headers=headers)
