"""The listener for other replicas: their connections, and what they may ask here.

It is the hub's own listener once more, on the advertised address, with other rules: only a replica of this fleet comes
to a request (TLS with its certificate, or a Unix socket of the same user). A stranger holds as little here as at the
other port: places, handshakes and heads have the same limits (SEC-11).

A request that is sent on comes as the client sent it. Its principal and its endpoint are in headers, which mean
something at this listener alone. It is marked as forwarded, so that it goes no further, and it is verified again: a
session id opens only for its principal, a question is answered only in its own session, and a pending call only by the
same request of the same principal. A replica that is shutting down refuses it before anything is done for it (503).

A request without a target is one of a user's slot at another replica: this one is her home, and runs her processes. It
is served as on the listener for hubs, for the principal that it names.

    POST /replicas/cancel     a client gave up a request: the replica that serves it ends it
    POST /replicas/listening  whether a client's stream of notices is open here, and for how long
    POST /replicas/deliver    a message for that stream
    POST /replicas/forget     a client with a key ended its connections
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, unquote

import anyio
from uvicorn.server import ServerState

from holdfast.access import ClientKey, ConnectionLimits, Principal, is_endpoint
from holdfast.endpoint import LivesElsewhere
from holdfast.fleet import (
    ABOUT_HEADER,
    OPERATIONS,
    PRINCIPAL_HEADER,
    REFUSED_HEADER,
    SENDER_HEADER,
    TARGET_HEADER,
    Peers,
    said_in,
)
from holdfast.front.acceptor import Acceptor
from holdfast.front.peer_connection import PeerConnection
from holdfast.front.requests import BodyBudget, Reply, Request
from holdfast.wire import dumps, principal_in

if TYPE_CHECKING:
    from holdfast.front.sessions import HttpSession

__all__ = ["EndpointsOfHub", "PeerListener", "SessionsInMemory"]

LARGEST_MESSAGE: Final = 16 * 1024 * 1024
"""Bytes of a message for a stream of notices."""
END_SECONDS: Final = 5.0
"""How long the end of what is still served may take."""
_HEADERS: Final = frozenset({ABOUT_HEADER, SENDER_HEADER, TARGET_HEADER, PRINCIPAL_HEADER})


class SessionsInMemory(Protocol):
    """The sessions of one endpoint."""

    def in_use(self, session_id: str, principal: str) -> HttpSession | None:
        """A session in memory, if it is of this principal."""


class ReachedEndpoint(Protocol):
    """One endpoint, as other replicas reach it."""

    @property
    def sessions(self) -> SessionsInMemory:
        """Its sessions."""

    async def serve(self, request: Request, reply: Reply, principal: Principal) -> None:
        """Answer one request."""


class UserEndpoints(Protocol):
    """The endpoints, as the slots of users at other replicas call them: as a hub behind theirs."""

    async def serve(self, request: Request, reply: Reply) -> None:
        """Answer one request."""


class EndpointsOfHub(Protocol):
    """All endpoints of a hub."""

    refusing: bool
    """Whether new requests are refused."""
    bodies: BodyBudget
    """The room for bodies."""

    def endpoint_of(self, server: str | None) -> ReachedEndpoint | None:
        """One endpoint; None if there is no such server."""

    def release(self, owner: ClientKey) -> None:
        """Close the connections of a client that ended them."""


class PeerListener:
    """Serves the other replicas. It is the ``MessageEndpoint`` of their connections."""

    def __init__(self, hub: EndpointsOfHub, peers: Peers, users: UserEndpoints, is_home: Callable[[str], bool]) -> None:
        """``is_home`` says whether this replica runs the processes of a user."""
        self._hub = hub
        self._users = users
        self._is_home = is_home
        self._peers = peers
        self.retiring = False
        """Replicas close their connections themselves."""
        self._acceptor: Acceptor | None = None
        self._state = ServerState()
        self._served = SimpleNamespace(
            loaded_app=_no_application, app=SimpleNamespace(state=SimpleNamespace(endpoint=self))
        )
        """What a connection asks of uvicorn's configuration."""

    @property
    def bodies(self) -> BodyBudget:
        """The room for bodies, that of all clients."""
        return self._hub.bodies

    async def run(self) -> None:
        """Accept until cancelled; then close what is open."""
        listener, self._peers.listener = self._peers.listener, None
        if listener is None:
            return  # the others cannot reach this replica
        tls = None if self._peers.address.startswith("unix:") else self._peers.identity.server()
        self._acceptor = Acceptor(listener, self._made, limits=ConnectionLimits(), tls=tls)
        try:
            await anyio.sleep_forever()
        finally:
            self.close()
            with anyio.CancelScope(shield=True):
                await self._acceptor.wait_closed()
                await _ended(list(self._state.tasks))

    @property
    def connections(self) -> list[PeerConnection]:
        """The connections of other replicas that are open."""
        return [one for one in self._state.connections if isinstance(one, PeerConnection)]

    def close(self) -> None:
        """Accept nothing any more, and close what is open."""
        if self._acceptor is not None:
            self._acceptor.close()
        for one in self.connections:
            one.transport.abort()

    def _made(self) -> PeerConnection:
        return PeerConnection(self._served, self._state, {}, self._peers.identity.trusts)

    def claims(self, path: str) -> bool:
        """Whether a path is served here: all that replicas send is."""
        return True

    async def serve(self, request: Request, reply: Reply) -> None:
        """Answer one request of another replica."""
        headers = request.headers
        if TARGET_HEADER not in headers and is_endpoint(request.path):
            # The slot of a user whose home this is; else two replicas would wait for each other.
            if self._is_home(principal_in(headers)):
                await self._users.serve(request, reply)
            else:
                _refuse(reply, 421, "the processes of this user are on another replica now")
            return
        if unquote(headers.get(TARGET_HEADER, "")) != self._peers.replica:
            _refuse(reply, 409, "another replica has this address now")
            return
        if request.path.startswith(OPERATIONS):
            await self._operate(request, reply)
            return
        about = said_in(headers.get(ABOUT_HEADER, ""))
        self._peers.note_leaving(map(str, about.get("leaving") or ()))
        if self._hub.refusing:
            _refuse(reply, 503, "it is shutting down")
            return
        endpoint = self._hub.endpoint_of(about.get("endpoint"))
        if endpoint is None:
            _refuse(reply, 409, "it has no such server")
            return
        principal = _principal(said_in(headers.get(PRINCIPAL_HEADER, "")))
        request.headers = {name: value for name, value in headers.items() if name not in _HEADERS}
        request.forwarded = True
        try:
            await endpoint.serve(request, reply, principal)
        except LivesElsewhere:
            _refuse(reply, 421, "the connections of this client are on another replica now")

    async def _operate(self, request: Request, reply: Reply) -> None:
        operation = request.path.removeprefix(OPERATIONS)
        about = said_in(request.headers.get(ABOUT_HEADER, ""))
        body = await request.body(LARGEST_MESSAGE)
        session = self._session(about) if "session" in about else None
        match operation:
            case "cancel":
                cancelled = session is not None and session.exchange.cancel(about.get("request", ""))
                _answer(reply, cancelled=cancelled)
            case "listening":
                # Its age: the clocks of two machines cannot be compared.
                age = time.monotonic() - session.listening_since if session is not None else 0.0
                _answer(reply, listening=session is not None and session.listening, age=age)
            case "deliver":
                delivered = session is not None and session.listening
                if session is not None and delivered:
                    session.notices.send(body)
                _answer(reply, delivered=delivered)
            case "forget":
                self._hub.release(ClientKey(str(about.get("principal")), str(about.get("key"))))
                _answer(reply)
            case _:
                _refuse(reply, 409, f"it knows no {operation[:50]}")

    def _session(self, about: Mapping[str, Any]) -> HttpSession | None:
        endpoint = self._hub.endpoint_of(about.get("endpoint"))
        if endpoint is None:
            return None
        return endpoint.sessions.in_use(str(about.get("session")), str(about.get("principal")))


def _answer(reply: Reply, **said: object) -> None:
    reply.plain(200, dumps(said))


def _refuse(reply: Reply, status: int, reason: str) -> None:
    reply.plain(status, b"{}", f"{REFUSED_HEADER}: {quote(reason, safe=' ')}\r\n".encode("latin-1"))


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """End what still serves: its connection is gone."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_SECONDS)


async def _no_application(*_: object) -> None:
    """Nothing: every path is claimed before."""


def _principal(said: Mapping[str, Any]) -> Principal:
    source = said.get("source")
    return Principal(
        name=str(said.get("name", "")),
        groups=frozenset(map(str, said.get("groups", ()))),
        scopes=frozenset(map(str, said.get("scopes", ()))),
        source=source if source in ("local", "token", "jwt", "gateway", "hub") else "local",
    )
