"""Logins to servers through a browser: a user's own at the connect page, and the hub's from the status page.

A user logs in to a server that is per user (AUTH-7, AUTH-10). ``ConnectPage`` has three steps, and the hub's own client
metadata:

    /connect?ticket=…     who sits at the browser? Only the user of the link goes on (``LoginLinks``). The page names
                          the server, the scopes and the program that needs the login; the person presses a button.
    POST /connect         sends the browser to the authorization server of that server, with a state, PKCE, and the hub
                          as its client
    /connect/callback     the browser comes back: the code is exchanged, and the tokens are kept for this user

What the callback needs is in a sealed cookie, so any worker and any replica can serve it.

``PrincipalLogins`` shows a user her logins on the status page, leads her from there to the connect page, and ends one.

What must never happen:

* A person's login is kept for another user. The user is identified at each of the three steps by the browser itself,
  never by the link, and must be the same one each time.
* Another site makes a browser agree: the POST needs a token that only the page has, and must come from a page of this
  hub.
* A user learns of another user's login, or of a server that the access rules hide from her. A server that is hidden and
  one that does not exist are the same to her.
* An answer that this browser did not ask for is taken: its state and its issuer are checked (``finish_login``).
* A server leads a person to one issuer and takes her code to another. The issuer that the page shows is signed into
  its form, and kept in the cookie; a server that names another one at a later step is refused.

An operator logs the hub in to a server from the status page (``log_in_from_page``). The request that asks for it owns
the login, which ends with it, and with the role of the operator. The answer is an event stream: `visit` with the page
of the authorization server, then `done` or `failed`. That page leads back to the machine of the hub; a person whose
browser runs elsewhere sends the last address instead.
"""

from __future__ import annotations

import hmac
import html
import json
import logging
import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Final
from urllib.parse import urlencode, urlsplit

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.access import AuditTrail, Principal
from holdfast.auth import (
    DeviceCode,
    PendingLogin,
    StoreUnusable,
    UserGrants,
    begin_login,
    canonical,
    finish_login,
    log_in,
    log_out,
    plan_login,
    rungs_of,
    status_of,
    takes_login,
)
from holdfast.config import ServerSpec
from holdfast.control.models import ApiError, ApiModel, LoginEnded, LoginLink, LoginPage, OwnLogin, OwnLogins
from holdfast.control.server.browser_identity import NOT_KEPT, BrowserIdentity, SealedCookies, read_fields, shell
from holdfast.control.server.control_events import KEEP_ALIVE, KEEP_ALIVE_SECONDS, frame
from holdfast.core import State, command_line
from holdfast.endpoint import CONNECT_PATH, LINK_SECONDS, LoginLinks, LoginTicket, View
from holdfast.errors import HoldfastError, LoginFailed, UnknownServer
from holdfast.hub import Hub
from holdfast.keys import as_text

__all__ = ["CLIENT_DOCUMENT", "ConnectPage", "PendingLogins", "PrincipalLogins", "log_in_from_page", "login_frames"]

log = logging.getLogger("holdfast.control")

CALLBACK: Final = f"{CONNECT_PATH}/callback"
CLIENT_DOCUMENT: Final = "/.well-known/oauth-client"
"""Where the hub's client metadata document is; its address is the hub's client id."""


class ConnectPage:
    """Logs users in at the authorization servers of servers that are per user."""

    def __init__(
        self, hub: Hub, links: LoginLinks, browsers: BrowserIdentity, *, audit: AuditTrail | None = None
    ) -> None:
        self._hub = hub
        self._links = links
        self._browsers = browsers
        self._audit = audit
        self._cookies = SealedCookies(links.base, links.ring, links.wall)

    def __repr__(self) -> str:
        return f"<ConnectPage of {self._links.base}>"

    def routes(self) -> tuple[Route, ...]:
        """The routes; each finds out itself who sits at the browser."""
        return (
            Route(CONNECT_PATH, self._show, methods=["GET"]),
            Route(CONNECT_PATH, self._begin, methods=["POST"]),
            Route(CALLBACK, self._come_back, methods=["GET"]),
            Route(CLIENT_DOCUMENT, self._document, methods=["GET"]),
        )

    # The steps.

    async def _show(self, request: Request) -> Response:
        written = request.query_params.get("ticket", "")
        found = await self._ticket(request, written)
        if isinstance(found, Response):
            return found
        ticket, spec = found
        grants = self._hub.registry.users.grants(ticket.principal)
        try:
            planned = await plan_login(self._spec(spec), store=grants)
        except HoldfastError as failed:
            return self._failed(ticket, failed)
        rows = {
            "Server": f"{spec.id} ({urlsplit(spec.url).netloc})",
            "Logs in at": planned.issuer,
            "Scopes": " ".join(planned.scope) or "its default scopes",
            "Program": ticket.program or "it does not say its name",
            "You are": ticket.principal,
        }
        listed = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(said)}</dd>" for name, said in rows.items())
        csrf = self._csrf(ticket, written, planned.issuer)
        hidden = {"ticket": written, "issuer": planned.issuer, "csrf": csrf}
        fields = "".join(
            f'<input type="hidden" name="{name}" value="{html.escape(value)}">' for name, value in hidden.items()
        )
        rest = f"""<dl class="facts">{listed}</dl>
      <form method="post" action="{CONNECT_PATH}">{fields}
        <p class="fine">The hub keeps the login for you alone, encrypted. Go on only if you asked for it just now.</p>
        <button type="submit" class="primary">Log in to {html.escape(spec.id)}</button>
      </form>"""
        # The form leads on to the authorization server, which a browser checks too.
        return shell(f"Log in to {spec.id}", "", rest, 200, leads_to=planned.issuer)

    async def _begin(self, request: Request) -> Response:
        if not self._browsers.is_own_page(request):
            return JSONResponse({"error": "this is for pages of this hub"}, status_code=403, headers=NOT_KEPT)
        fields = await read_fields(request)
        written = fields.get("ticket", "")
        found = await self._ticket(request, written)
        if isinstance(found, Response):
            return found
        ticket, spec = found
        # The ticket is in a link that others may know; this value only the page has that its user looked at. It says
        # which issuer the page showed her, too.
        issuer = fields.get("issuer", "")
        given, right = fields.get("csrf", ""), self._csrf(ticket, written, issuer)
        if not hmac.compare_digest(given.encode("utf-8", "replace"), right.encode()):
            return shell("Not logged in", "The form is not of this page. Open the link again.", "", 403)
        grants = self._hub.registry.users.grants(ticket.principal)
        try:
            address, pending = await begin_login(self._spec(spec), store=grants, agreed=issuer)
        except HoldfastError as failed:
            return self._failed(ticket, failed)
        response = RedirectResponse(address, status_code=303, headers=NOT_KEPT)
        kept = {
            "principal": ticket.principal,
            "server": ticket.server,
            "state": pending.state,
            "verifier": pending.verifier,
            "issuer": pending.issuer,
            "scope": list(pending.scope),
            "client": asdict(pending.client),
        }
        try:
            self._cookies.put(response, "connect", kept)
        except ValueError:
            return self._failed(ticket, LoginFailed("the registration at the server is too large for a browser"))
        return response

    async def _come_back(self, request: Request) -> Response:
        kept = self._cookies.read(request, "connect")
        who = await self._browsers.identify(request)
        # The one who comes back must be the one who began: else a login of one person would be kept for another.
        if kept is None or who is None or who.principal.name != kept["principal"]:
            return shell("Not logged in", "This browser did not begin a login here. Open the link again.", "", 403)
        principal, server = str(kept["principal"]), str(kept["server"])
        ticket = LoginTicket(principal=principal, server=server, program="", until=0.0)
        spec = self._served(server)
        if spec is None:
            return self._failed(ticket, LoginFailed(f"`{server}` is not served any more"))
        pending = PendingLogin.read(kept)
        users = self._hub.registry.users
        try:
            await finish_login(
                self._spec(spec), store=users.grants(principal), pending=pending, answer=dict(request.query_params)
            )
        except HoldfastError as failed:
            return self._failed(ticket, failed)
        # The slots of this user alone: at other users' connections nothing has changed.
        users.use_login(principal, server)
        self._record(principal, server, "done")
        response = shell(
            f"Logged in to {server}",
            "",
            '<p>You can close this page and go back to your program, or <a href="/">to the status page</a>.</p>',
            200,
        )
        self._cookies.drop(response, "connect")
        return response

    async def _document(self, _: Request) -> Response:
        """The hub's client metadata document (AUTH-10); a hub without a public https name has none."""
        if not self._has_document:
            return JSONResponse({"error": "not found"}, status_code=404)
        about = {
            "client_id": f"{self._links.base}{CLIENT_DOCUMENT}",
            "client_name": "Holdfast",
            "client_uri": self._links.base,
            "redirect_uris": [f"{self._links.base}{CALLBACK}"],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "web",
        }
        return JSONResponse(about, headers={"cache-control": "public, max-age=3600"})

    # What they share.

    async def _ticket(self, request: Request, written: str) -> tuple[LoginTicket, ServerSpec] | Response:
        """What a link says, if its user sits at the browser; else the page that says what to do."""
        ticket = self._links.read(written)
        if ticket is None:
            return shell("Not logged in", "This link is not valid any more. Ask for another one.", "", 400)
        who = await self._browsers.identify(request)
        if who is None:
            to = f"{CONNECT_PATH}?{urlencode({'ticket': written})}"
            return RedirectResponse(self._browsers.sign_in_address(to), status_code=303, headers=NOT_KEPT)
        # A link that was passed on must not tie the login of its reader to the account of its sender (AUTH-7).
        if who.principal.name != ticket.principal:
            self._record(who.principal.name, ticket.server, "refused", "the link is of another user")
            said = "This link is for another user of this hub. Open links only that your own program gave you."
            return shell("Not logged in", said, "", 403)
        spec = self._served(ticket.server)
        if spec is None:
            return shell("Not logged in", "The server of this link is not served any more.", "", 404)
        return ticket, spec

    def _served(self, server: str) -> ServerSpec | None:
        spec = self._hub.config.servers.get(server)
        fits = spec is not None and spec.sharing == "per-user" and not spec.problems and takes_login(spec)
        return spec if fits else None

    def _spec(self, spec: ServerSpec) -> ServerSpec:
        """The definition, with the hub as the client that logs in."""
        document = spec.oauth.client_metadata_url
        if document is None and self._has_document:
            document = f"{self._links.base}{CLIENT_DOCUMENT}"
        oauth = replace(spec.oauth, redirect_uri=f"{self._links.base}{CALLBACK}", client_metadata_url=document)
        return replace(spec, oauth=oauth)

    @property
    def _has_document(self) -> bool:
        return self._links.base.startswith("https://")

    def _csrf(self, ticket: LoginTicket, written: str, issuer: str) -> str:
        said = json.dumps([ticket.principal, written, issuer]).encode()
        return as_text(self._links.ring().sign(said, purpose="login form"))

    def _failed(self, ticket: LoginTicket, failed: HoldfastError) -> Response:
        self._record(ticket.principal, ticket.server, "failed", failed.message)
        said = f"{failed.message}.{f' {failed.hint}.' if failed.hint else ''}"
        return shell(f"Not logged in to {ticket.server}", said, "", 502)

    def _record(self, principal: str, server: str, outcome: str, reason: str = "") -> None:
        if self._audit is not None:
            self._audit.event("login", principal=principal, server=server, outcome=outcome, reason=reason)


STATUS_PAGE: Final = "the status page of this hub"
"""The program that a login from the status page is for."""


class PrincipalLogins:
    """The logins of one principal at a time, for herself alone."""

    def __init__(self, hub: Hub, links: LoginLinks) -> None:
        self._hub = hub
        self._links = links

    def __repr__(self) -> str:
        return f"<PrincipalLogins by {self._links!r}>"

    async def shown(self, principal: Principal) -> OwnLogins:
        """Her login to each server that is per user, as far as she may see them."""
        users, name = self._hub.registry.users, principal.name
        lacking = frozenset(users.lacking_login(name))
        found = [
            await self._login(name, spec, is_lacking=server in lacking)
            for server, spec in self._servers(principal).items()
        ]
        return OwnLogins(principal=name, logins=tuple(found))

    def link(self, principal: Principal, server: str) -> LoginLink:
        """Where she logs in to a server. Raises ``UnknownServer`` and ``LoginFailed``."""
        self._spec(principal, server)
        address = self._links.link(principal.name, server, STATUS_PAGE)
        if not address:
            raise LoginFailed(
                f"the hub cannot know a browser of yours, so you cannot log in to `{server}` here",
                hint=f"an operator can do it: `{_command(principal.name, server)}`",
            )
        return LoginLink(address=address, expires_in=LINK_SECONDS)

    async def end(self, principal: Principal, server: str) -> LoginEnded | None:
        """Remove and revoke her login to a server; None if there was none. Raises ``UnknownServer``."""
        spec, users = self._spec(principal, server), self._hub.registry.users
        try:
            gone = await log_out(spec, store=users.grants(principal.name))
        except StoreUnusable as exc:
            raise _unusable(exc) from None
        if gone is None:
            return None
        known = {one: canonical(other.url) for one, other in self._servers(principal).items()}
        also = tuple(one for one, address in known.items() if one != server and address in gone.grant.servers)
        for one in (server, *also):
            users.use_login(principal.name, one)
        return LoginEnded(server=server, revoked=gone.revoked, also=also)

    def _spec(self, principal: Principal, server: str) -> ServerSpec:
        found = self._servers(principal).get(server)
        if found is None:
            raise UnknownServer(f"no server named `{server}` takes a login of yours")
        return found

    def _servers(self, principal: Principal) -> dict[str, ServerSpec]:
        """The servers that take a login of hers, and that the access rules let her see."""
        users, config = self._hub.registry.users, self._hub.config
        view = View(self._hub, principal=principal.name).seen_by(principal)
        own = [one for one in sorted(users.servers) if users.has_own(principal.name, one) and view.has(one)]
        specs = {one: config.servers[one] for one in own}
        return {one: spec for one, spec in specs.items() if not spec.problems and takes_login(spec)}

    async def _login(self, principal: str, spec: ServerSpec, *, is_lacking: bool) -> OwnLogin:
        users = self._hub.registry.users
        slot = users.slots.find(principal, spec.id)
        is_connected = slot is not None and slot.state is State.CONNECTED
        try:
            read = await anyio.to_thread.run_sync(_read_login, spec, users.grants(principal), self._links.wall())
        except StoreUnusable as exc:
            raise _unusable(exc) from None
        if is_lacking and read.state in ("valid", "not_needed"):
            # The server denies what is stored, or what the hub got for her.
            read = read.model_copy(update={"state": "ended" if read.state == "valid" else "missing"})
        elif is_connected and read.state == "missing":
            read = read.model_copy(update={"state": "not_needed"})
        if self._links.link(principal, spec.id, STATUS_PAGE):
            return read
        return read.model_copy(update={"command": _command(principal, spec.id)})


def _read_login(spec: ServerSpec, grants: UserGrants, now: float) -> OwnLogin:
    """What is stored. It blocks."""
    grant = status_of(spec, grants).grant
    if grant is None:
        others = any(rung.open for rung in rungs_of(spec, grants, now) if rung.rung != "login")
        return OwnLogin(server=spec.id, state="not_needed" if others else "missing")
    return OwnLogin(
        server=spec.id,
        state="valid" if grant.usable(now) and not grant.refused else "ended",
        issuer=grant.issuer,
        scope=grant.scope,
        expires_at=grant.expires_at,
        refreshable=grant.refreshable,
    )


def _unusable(exc: StoreUnusable) -> HoldfastError:
    """What a user is told: the reason names a path of the hub, which is for operators."""
    log.warning("a user's logins cannot be used: %s", exc.message)
    return HoldfastError("your logins cannot be read or changed now", hint="an operator finds the reason in the log")


def _command(principal: str, server: str) -> str:
    return command_line("login", server=server, options=("--user", principal))


PERSON_SECONDS = 300.0
"""How long a person has for the pages of the authorization server."""


class PendingLogins:
    """The logins that wait for a person, one a server."""

    def __init__(self) -> None:
        self._waiting: dict[str, MemoryObjectSendStream[str]] = {}

    def answer(self, server: str, address: str) -> bool:
        """Hand over the address that a browser ended up at; False if no login of that server waits."""
        answers = self._waiting.get(server)
        if answers is None:
            return False
        answers.send_nowait(address)
        return True

    @contextmanager
    def answers(self, server: str) -> Iterator[MemoryObjectReceiveStream[str]]:
        """What a login gets while the block runs. An older login of the same server gets no more answers."""
        send, receive = anyio.create_memory_object_stream[str](math.inf)
        with send, receive:
            self._waiting[server] = send
            try:
                yield receive
            finally:
                # The older login may end after the newer one began: a page that is loaded again asks first, and its
                # old connection is found closed later. Then the place belongs to the newer one.
                if self._waiting.get(server) is send:
                    del self._waiting[server]


class _BrowserPrompt:
    """The person at the status page, as ``holdfast.auth`` asks them."""

    def __init__(self, answers: MemoryObjectReceiveStream[str], frames: MemoryObjectSendStream[bytes]) -> None:
        self._answers = answers
        self._frames = frames
        self._scope: tuple[str, ...] = ()
        self._issuer = ""

    def asked_for(self, scope: tuple[str, ...], issuer: str) -> None:
        self._scope, self._issuer = scope, issuer

    def visit(self, address: str) -> None:
        page = LoginPage(address=address, issuer=self._issuer, scope=self._scope, expires_in=PERSON_SECONDS)
        self._frames.send_nowait(frame("visit", page.model_dump_json(), 1))

    def enter(self, code: DeviceCode) -> None:
        raise AssertionError("the page logs in by browser")

    async def paste(self) -> str:
        return await self._answers.receive()


async def log_in_from_page(
    hub: Hub, spec: ServerSpec, pending: PendingLogins, frames: MemoryObjectSendStream[bytes], *, scope: tuple[str, ...]
) -> None:
    """Log in, write what the page shows and how it ended, and close the stream."""
    with frames, pending.answers(spec.id) as answers:
        try:
            await log_in(
                spec,
                store=hub.registry.logins.store,
                person=_BrowserPrompt(answers, frames),
                scope=scope,
                within=PERSON_SECONDS,
            )
            # The hub notices a new login by itself; asked, it does so at once and says whether it helped.
            await hub.reconnect(spec.id)
        except HoldfastError as error:
            frames.send_nowait(_event("failed", ApiError(error=error.message, hint=error.hint)))
        else:
            frames.send_nowait(_event("done", ApiModel()))


async def login_frames(news: MemoryObjectReceiveStream[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield what a login writes, and what keeps its stream alive while it waits for a person."""
    with news, suppress(anyio.EndOfStream):
        while True:
            part = KEEP_ALIVE
            with anyio.move_on_after(KEEP_ALIVE_SECONDS):
                part = await news.receive()
            yield part


def _event(name: str, model: ApiModel) -> bytes:
    return frame(name, model.model_dump_json(), 2)
