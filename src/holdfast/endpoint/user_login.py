"""The login of a user to a server that is per user, from the conversation with her client (AUTH-7).

A server that denies a user access because her login is missing lists nothing, so there would be nothing to call. While
that is so, her list of tools has ``holdfast_login``. It, and every call to such a server, first leads to the login:

* A client of 2025-11-25 that takes URLs is asked (``elicitation/create`` in URL mode). The call stays open until the
  login is there, and its own time does not run; then the client is told (``notifications/elicitation/complete``). If
  the call cannot be used to ask, the client gets the error -32042 with the same link, and repeats the call. Never both.
* A client of 2026-07-28 that takes URLs gets ``input_required`` with the link. It repeats its request with the
  ``requestState``, which is sealed over the user, the request and a time: no process has to remember anything. A
  repeated request waits a moment for the login, and gets ``input_required`` again if it does not come.
* Every other client gets the link in the result.
* A user whom the hub cannot recognise at a browser gets no link, but the command for the operator of the hub.

What must never happen: a call goes out with a login that is not the caller's. So nothing here sends a call: it only
waits until the caller's own slot is connected.

A link leads to a page of this hub. It names the server, the user and the program that needs the login, sealed: it says
nothing to anyone else, and it opens nothing by itself. The page first finds out who sits at the browser, and goes on
only if that is the user of the link. So a link that reaches another person is of no use: neither can she log in for
the user, nor is her own login given to the user. A link is valid for a time, and any worker and any replica with the
hub's keys reads it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlencode

from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, URL_ELICITATION_REQUIRED
from mcp_types.methods import INPUT_REQUIRED_METHODS

from holdfast.access import LOCAL
from holdfast.core import State, command_line, quoted
from holdfast.endpoint.clients import Call, Client
from holdfast.endpoint.input_required import EXPIRED, request_identity
from holdfast.endpoint.instructions import LOGIN_TOOL, mistake, said
from holdfast.endpoint.view import View
from holdfast.hub import Hub, Slot
from holdfast.keys import KeyRing
from holdfast.wire import Fields, RawObject, dumps, load_members, text_of

__all__ = [
    "CONNECT_PATH",
    "LINK_SECONDS",
    "LoginLinks",
    "LoginTicket",
    "LoginsInConversation",
    "lacking_login",
    "login_tool",
    "offers_login",
    "without_login_state",
]

PERSON_SECONDS: Final = 300.0
"""How long a call stays open for a person who logs in."""

RETRY_SECONDS: Final = 20.0
"""How long a repeated request waits for the login. Clients commonly give a request 30 s or more."""

URL_VERSION: Final = "2025-11-25"
"""The first version that knows elicitation by URL."""

_MARK: Final = "holdfast-login."
_PURPOSE: Final = "login state"
_QUESTION: Final = "login"


def lacking_login(view: View) -> tuple[str, ...]:
    """The servers of an endpoint that lack the login of its user."""
    return tuple(one for one in view.hub.registry.users.lacking_login(view.principal) if view.covers(one))


def offers_login(view: View) -> bool:
    """Whether the tool can be called: the endpoint has servers to which its user may log in."""
    users = view.hub.registry.users
    return any(users.has_own(view.principal, server) and view.has(server) for server in users.servers)


def login_tool(servers: tuple[str, ...]) -> dict[str, Any]:
    """Return the tool for the list, while these servers lack the login of a user."""
    return {
        "name": LOGIN_TOOL,
        "title": "Log in to an MCP server",
        "description": "Log in to an MCP server as yourself. "
        f"Your login is missing or has ended at: {', '.join(servers)}. Until then its tools are not listed.",
        "inputSchema": {
            "type": "object",
            "properties": {"server": {"type": "string", "description": "The server to log in to."}},
            "required": ["server"],
        },
        "annotations": {"readOnlyHint": False, "idempotentHint": True, "openWorldHint": True},
    }


class LoginsInConversation:
    """Leads users to the logins that their calls need. One for all endpoints of a hub.

    ``slot_of`` starts the slot of a user for a server; ``start`` runs a task in the background.
    """

    def __init__(
        self,
        hub: Hub,
        links: LoginLinks | None,
        *,
        slot_of: Callable[[str, str], Slot],
        start: Callable[..., None],
    ) -> None:
        self._hub = hub
        self._users = hub.registry.users
        self._links = links
        self._slot_of = slot_of
        self._start = start

    async def answer(self, call: Call, view: View, arguments: Mapping[str, Any]) -> RawObject:
        """The result of ``holdfast_login``."""
        wanted = arguments.get("server")
        own = sorted(server for server in self._users.servers if view.has(server))
        if wanted not in own:
            named = quoted(str(wanted)[:400]) if wanted is not None else "no server"
            known = ", ".join(own) or "none"
            text = f"The argument `server` names {named}. Servers that take a login of yours: {known}."
            return RawObject.of(mistake(text))
        server = str(wanted)
        if (instead := await self.before(call, server)) is not None:
            return instead
        if server not in self._users.lacking_login(call.principal):
            spec = self._hub.registry.slot(server).spec
            takes_one = bool(self._users.grants(call.principal).address_of(spec))
            words = f"You are logged in to MCP server '{server}'." if takes_one else f"'{server}' takes no login."
            status = "logged_in" if takes_one else "not_needed"
            return RawObject.of(said(words, {"server": server, "status": status}))
        command = command_line("login", server=server, options=("--user", call.principal))
        words = f"{_missing(server)} The login is made where this hub runs, by the command: {command}"
        return RawObject.of(said(words, {"server": server, "status": "login_required"}))

    async def before(self, call: Call, server: str) -> RawObject | None:
        """Lead the user to the login that a call needs. None: the call may go on; else what its client gets instead.

        Raises ``MCPError`` and ``ServerBusy``.
        """
        if call.method not in INPUT_REQUIRED_METHODS or not self._users.has_own(call.principal, server):
            return None
        slot, state = self._slot_of(call.principal, server), login_state(call.params, modern=call.client.modern)
        clock = self._hub.registry.clock
        if state is not None:
            self._check(call, state)
            if await _is_refused(call.params):
                return _declined(call, server)
            await self._connected(call.principal, server, RETRY_SECONDS)
        elif not slot.has_outcome.is_set():
            await clock.wait(slot.has_outcome, clock.now() + self._hub.config.settings.call.ready_timeout)
        if server not in self._users.lacking_login(call.principal):
            return None
        program = call.client.program
        link = self._links.link(call.principal, server, program) if self._links is not None else ""
        if not link or self._links is None:
            return None  # the refusal of the slot says the command
        if not _takes_urls(call):
            return _linked(call, server, link)
        if call.client.modern:
            return _input_required(server, link, self._state_for(call, self._links))
        return await self._ask(call, server, link)

    # 2025-11-25.

    async def _ask(self, call: Call, server: str, link: str) -> RawObject | None:
        """Ask the client to open the link, and wait for the login."""
        asked = {"mode": "url", "elicitationId": secrets.token_urlsafe(16), "url": link, "message": _missing(server)}
        done = {"elicitationId": asked["elicitationId"]}
        try:
            await call.reply.reach("elicitation/create")
        except MCPError:
            self._start(self._tell_when_connected, call.client, server, done)
            raise MCPError(URL_ELICITATION_REQUIRED, _missing(server), {"elicitations": [asked]}) from None
        answer = await call.ask("elicitation/create", asked)
        if answer.get("action") != "accept":
            return _declined(call, server)
        if not await self._connected(call.principal, server, PERSON_SECONDS):
            return _linked(call, server, link)
        call.tell("notifications/elicitation/complete", done)
        return None

    async def _tell_when_connected(self, client: Client, server: str, done: Mapping[str, Any]) -> None:
        if await self._connected(client.principal, server, PERSON_SECONDS):
            client.outlet.tell("notifications/elicitation/complete", done)

    async def _connected(self, principal: str, server: str, within: float) -> bool:
        """Wait until a user's slot is connected; False if it is not in time. The slot is in use meanwhile."""
        until = self._hub.registry.clock.now() + within
        slot, use = self._slot_of(principal, server), self._users.slots.use(principal, server)
        try:
            while slot.state is not State.CONNECTED:
                if not await slot.changed(until):
                    return False
                slot = self._slot_of(principal, server)
        finally:
            self._users.slots.unuse(use)
        return True

    # 2026-07-28.

    def _state_for(self, call: Call, links: LoginLinks) -> str:
        content = {"request": request_identity(call), "until": links.wall() + PERSON_SECONDS}
        about = call.principal.encode("utf-8", "surrogatepass")
        return _MARK + links.ring().seal_text(json.dumps(content).encode(), purpose=_PURPOSE, about=about)

    def _check(self, call: Call, state: str) -> None:
        """Raise ``MCPError`` if a state was not made for this user and this request, or expired."""
        links, content = self._links, None
        if links is not None:
            about = call.principal.encode("utf-8", "surrogatepass")
            content = links.ring().open_text(state.removeprefix(_MARK), purpose=_PURPOSE, about=about)
        kept = json.loads(content) if content is not None else {}  # the seal is this hub's, so it has all its members
        if links is None or kept.get("request") != request_identity(call) or kept["until"] < links.wall():
            raise MCPError(INVALID_PARAMS, EXPIRED)


def login_state(params: Fields, *, modern: bool) -> str | None:
    """The state of a repeated request that waits for a login; None if it has none."""
    state = text_of(params["requestState"]) if modern and "requestState" in params else None
    return state if state is not None and state.startswith(_MARK) else None


def without_login_state(params: Fields, *, modern: bool) -> Fields:
    """The parameters for the server: what belonged to the login is taken out."""
    if login_state(params, modern=modern) is None:
        return params
    return {key: value for key, value in params.items() if key not in ("requestState", "inputResponses")}


def _takes_urls(call: Call) -> bool:
    declared = call.client.capabilities.get("elicitation")
    has_urls = isinstance(declared, Mapping) and declared.get("url") is not None
    return has_urls and (call.client.modern or call.version >= URL_VERSION)


async def _is_refused(params: Fields) -> bool:
    """Whether the answer of a person is another one than to go on."""
    given = {key: one for key, one in params.items() if key == "inputResponses"}
    answers = (await load_members(RawObject(given))).get("inputResponses")
    answer = answers.get(_QUESTION) if isinstance(answers, Mapping) else None
    return isinstance(answer, Mapping) and answer.get("action") in ("decline", "cancel")


def _input_required(server: str, link: str, state: str) -> RawObject:
    asked = {"method": "elicitation/create", "params": {"mode": "url", "message": _missing(server), "url": link}}
    return RawObject(
        {
            "resultType": dumps("input_required"),
            "inputRequests": dumps({_QUESTION: asked}),
            "requestState": dumps(state),
        }
    )


def _missing(server: str) -> str:
    return f"You are not logged in to MCP server '{server}'."


def _linked(call: Call, server: str, link: str) -> RawObject:
    """The link, where a client can be given it in no other way."""
    words = f"{_missing(server)} Open this link in a browser and log in, then try again: {link}"
    return _instead(call, server, words, link)


def _declined(call: Call, server: str) -> RawObject:
    return _instead(call, server, f"{_missing(server)} The login was declined.", "")


def _instead(call: Call, server: str, words: str, link: str) -> RawObject:
    """What a client gets in place of a result; of a prompt or a resource it is an error."""
    data = {"server": server, "status": "login_required", **({"url": link} if link else {})}
    if call.method != "tools/call":
        raise MCPError(INTERNAL_ERROR, words, data)
    return RawObject.of(mistake(words) | {"_meta": {"holdfast/login": data}})


# The links.

CONNECT_PATH: Final = "/connect"

LINK_SECONDS: Final = 900.0
"""How long a link is valid: a person may have to find her second factor."""

LONGEST_TICKET: Final = 2_000
"""Characters."""

_LINK_PURPOSE: Final = "login link"


@dataclass(frozen=True, kw_only=True)
class LoginTicket:
    """What a link says."""

    principal: str
    server: str
    program: str
    """What the client calls itself that needs the login; empty if it does not say."""
    until: float


class LoginLinks:
    """Makes and reads links. ``base`` is the address of the hub that browsers use.

    ``by_issuer`` says whether people can sign in at the issuer of the hub: only so a browser can be known for the
    subject of a JWT.
    """

    def __init__(
        self, base: str, ring: Callable[[], KeyRing], *, by_issuer: bool, wall: Callable[[], float] = time.time
    ) -> None:
        self.base = base.rstrip("/")
        self.ring = ring
        self._by_issuer = by_issuer
        self.wall = wall

    def link(self, principal: str, server: str, program: str) -> str:
        """A link for a user; empty for one whom the hub cannot recognise at a browser."""
        if not self._is_recognised(principal):
            return ""
        ticket = LoginTicket(principal=principal, server=server, program=program, until=self.wall() + LINK_SECONDS)
        written = self.ring().seal_text(json.dumps(asdict(ticket)).encode(), purpose=_LINK_PURPOSE)
        return f"{self.base}{CONNECT_PATH}?{urlencode({'ticket': written})}"

    def read(self, written: str) -> LoginTicket | None:
        """What a link says; None if this hub did not make it, or it expired."""
        if not written or len(written) > LONGEST_TICKET:
            return None
        content = self.ring().open_text(written, purpose=_LINK_PURPOSE)
        ticket = LoginTicket(**json.loads(content)) if content is not None else None
        return ticket if ticket is not None and ticket.until > self.wall() else None

    def _is_recognised(self, principal: str) -> bool:
        """Whether a browser can be known for this user: by the gateway, by a token typed in, or by the issuer."""
        if principal == LOCAL.name:
            return False
        source, mark, _ = principal.partition("#")  # only subjects of JWTs and users of a gateway have the mark
        return not mark or source == "gateway" or self._by_issuer
