"""Requests between the replicas of a fleet: what belongs to another one is sent there, and what others send is served.

A request belongs to the replica that its id names: an answer to a question, the stream of an event id, a pending call,
a client with connections of its own. ``PeerRequests`` sends it on as the HTTP request that it is (``fleet.Peers``), and
streams the answer back. A cancellation names only the client's own id, so it goes to all replicas. A notice for a
client whose stream is on another replica is taken there, in order, and is sent once: if the connection breaks after it
was sent, it may have been delivered. A message that finds no stream stays in the log of its session, which a client
reads when it comes back.

``PeerListener`` is the other end: the hub's own listener once more, on the advertised address, with other rules. Only a
replica of this fleet comes to a request (TLS with its certificate, or a Unix socket of the same user). A stranger holds
as little here as at the other port: places, handshakes and heads have the same limits (SEC-11).

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

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import anyio
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from holdfast.access import ClientKey, ConnectionLimits, Principal, is_endpoint
from holdfast.core import replica_tag, tag_of_question
from holdfast.endpoint import EndpointAddress, LivesElsewhere, Message
from holdfast.fleet import (
    ABOUT_HEADER,
    OPERATIONS,
    PRINCIPAL_HEADER,
    REFUSED_HEADER,
    SENDER_HEADER,
    TARGET_HEADER,
    PeerFailed,
    PeerLeaves,
    PeerRefused,
    Peers,
    PeerUnreachable,
    said_in,
    written,
)
from holdfast.front.listener import Acceptor, HttpConnection, HttpConnections, MessageEndpoint, RequestHandler
from holdfast.front.requests import JSON_HEADER, BodyBudget, Reply, Request
from holdfast.wire import Response, dumps, principal_in

if TYPE_CHECKING:
    from holdfast.front.app import Front
    from holdfast.front.session_store import HttpSession

__all__ = ["PeerListener", "PeerRequests", "refuse_forwarded"]

log = logging.getLogger("holdfast.front")

ASK_SECONDS: Final = 2.0
"""How long another replica may take for a short answer."""

MOST_WAITING: Final = 1_000
"""Messages of one session that wait for their way to another replica; then the oldest are dropped."""

LARGEST_MESSAGE: Final = 16 * 1024 * 1024
"""Bytes of a message for a stream of notices."""

UNREAD_BYTES: Final = 1024 * 1024
"""How much of a forwarded answer may wait for a client that reads slowly."""

_NOT_FORWARDED: Final = frozenset(
    {"authorization", "connection", "content-length", "cookie", "expect", "holdfast-about", "holdfast-forwarded",
     "holdfast-gateway-secret", "holdfast-principal", "holdfast-to", "host", "keep-alive", "proxy-authorization", "te",
     "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Headers of the connection, and credentials: the other replica gets the principal that they stand for."""
_OF_CONNECTION: Final = frozenset({"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"})
LARGEST_ANSWER: Final = 512 * 1024 * 1024
"""Bytes of an answer that is no stream."""

MOST_TRIES: Final = 4
"""How often a request looks where it belongs: here, or at which other replica."""

UNKNOWN_QUESTION: Final = (
    "this question is not open: it was asked before the hub was restarted, or by another replica; "
    "the call that it belongs to has ended"
)
_OUTCOME_UNKNOWN: Final = (
    "the replica that served this request broke off: whether the server carried the request out is not known"
)


class PeerRequests:
    """The requests of one endpoint that belong to other replicas. ``start`` runs work in the background."""

    def __init__(self, peers: Peers, endpoint: str | None, start: Callable[..., None]) -> None:
        self._peers = peers
        self._endpoint = endpoint
        self.notices = NoticesElsewhere(peers, endpoint, start)
        self.tag = replica_tag(peers.replica)
        """Names this replica in ids that clients get."""

    # A whole request.

    async def answer(self, elsewhere: LivesElsewhere, request: Request, reply: Reply) -> bool:
        """Let the replica answer that a request belongs to; False if the request has to look again where it belongs.

        That replica may be gone, or have it no more. Raises ``MCPError`` if the request is lost with it.
        """
        try:
            await self._relay(elsewhere.replica, request, reply)
        except (PeerUnreachable, PeerRefused) as exc:
            if elsewhere.moves is None:
                raise MCPError(INVALID_PARAMS, f"{elsewhere.lost} ({exc})") from exc
            # A replica that refuses it knows of one that came or left a moment ago. So does this one, soon; of one
            # that says itself that it leaves, it knows now.
            if isinstance(exc, PeerLeaves) or await elsewhere.moves() or (isinstance(exc, PeerRefused) and exc.moved):
                return False
            raise MCPError(INTERNAL_ERROR, f"the connections of this client cannot be reached: {exc}") from exc
        except PeerFailed as exc:
            raise MCPError(INTERNAL_ERROR, f"{_OUTCOME_UNKNOWN} ({exc})") from exc
        return True

    async def pass_answer(self, message: Message, request: Request, reply: Reply) -> str | None:
        """Pass a client's answer to the replica that asked; else why it could not be passed."""
        if not isinstance(message.key, int) or request.forwarded:
            return UNKNOWN_QUESTION
        problem = await self._relay_to_one(await self._peers.with_tag(tag_of_question(message.key)), request, reply)
        if not problem:
            return problem if problem is None else UNKNOWN_QUESTION
        return f"the replica that asked this question did not take the answer: {problem}"

    async def resume(self, tag: str, request: Request, reply: Reply) -> bool:
        """Let the replica that made an event go on with its stream; False if no other replica does."""
        if request.forwarded:
            return False
        return await self._relay_to_one(await self._peers.with_tag(tag), request, reply) is None

    async def pass_notice(self, replica: str, request: Request) -> None:
        """Pass a client's notification to the replica with its connections; it has no answer."""
        try:
            with anyio.fail_after(ASK_SECONDS):
                async with self._sent(replica, request) as answer:
                    await answer.read(LARGEST_ANSWER)
        except (PeerUnreachable, PeerRefused, PeerFailed, TimeoutError) as exc:
            log.info("a notification of a client did not reach its connections: %s", exc)

    async def _relay_to_one(self, replicas: Iterable[str], request: Request, reply: Reply) -> str | None:
        """Let the first of these replicas answer that does; else why none did, which is empty for none at all."""
        problem = ""
        for replica in replicas:
            try:
                await self._relay(replica, request, reply)
            except (PeerUnreachable, PeerRefused, PeerFailed) as exc:
                problem = str(exc)
            else:
                return None
        return problem

    async def _relay(self, replica: str, request: Request, reply: Reply) -> None:
        """Let another replica answer. Raises ``PeerUnreachable``, ``PeerRefused`` or ``PeerFailed`` before it began."""
        waiting = reply.hand_over()
        began = False
        with anyio.CancelScope() as scope, request.ending_with_client(scope.cancel):
            try:
                async with self._sent(replica, request) as answer:
                    status, headers = answer.status, _passed_on(answer.headers)
                    if "text/event-stream" not in answer.headers.get("content-type", ""):
                        whole = await answer.read(LARGEST_ANSWER)
                        began = True
                        reply.result(bytes(whole or b""), status=status, headers=headers)
                        return
                    began = True
                    if not reply.started:
                        reply.start(status, headers)
                    while (piece := await answer.next_chunk()) is not None:
                        reply.piece(bytes(piece))
                        if reply.out.unread > UNREAD_BYTES:
                            await reply.out.drained()
                    reply.end()
            except PeerFailed as exc:
                if not began:
                    raise
                log.info("the replica %s broke off an answer: %s", replica, exc)
                reply.abort()  # its client comes back with the last event that it saw
            finally:
                if not began:  # the request is answered here after all, and may take long
                    reply.wait_for_result(*waiting)

    def _sent(self, replica: str, request: Request) -> AbstractAsyncContextManager[Response]:
        headers = {name: value for name, value in request.headers.items() if name not in _NOT_FORWARDED}
        principal = request.principal
        headers[PRINCIPAL_HEADER] = written(
            {
                "name": principal.name,
                "groups": sorted(principal.groups),
                "scopes": sorted(principal.scopes),
                "source": principal.source,
            }
        )
        headers[ABOUT_HEADER] = written({"endpoint": self._endpoint, "leaving": sorted(self._peers.leaving)})
        return self._peers.request(replica, request.head.method, request.head.path, headers, request.whole)

    # What a client says and hears beside its requests.

    async def cancel(self, session: HttpSession, request: str | int) -> None:
        """A client gave up a request that is not served here: tell the others."""
        await self._peers.ask_all("cancel", {**_named(session, self._endpoint), "request": request}, within=ASK_SECONDS)

    async def forget_client(self, owner: ClientKey) -> None:
        """A client ended its connections; they may be at the others."""
        await self._peers.ask_all("forget", {"principal": owner.principal, "key": owner.key}, within=ASK_SECONDS)


class NoticesElsewhere:
    """The notices of an endpoint's sessions whose streams are on other replicas."""

    def __init__(self, peers: Peers, endpoint: str | None, start: Callable[..., None]) -> None:
        self._peers = peers
        self._endpoint = endpoint
        self._start = start
        self._waiting: dict[HttpSession, deque[bytes]] = {}

    def deliver(self, session: HttpSession, message: bytes) -> None:
        """Take a notice to the replica that has the stream, after those that wait already."""
        waiting = self._waiting.get(session)
        if waiting is not None:
            waiting.append(message)
            return
        self._waiting[session] = deque((message,), maxlen=MOST_WAITING)
        self._start(self._carry, session)

    async def find(self, session: HttpSession) -> bool:
        """Look for the replica that has a session's stream of notices; the newest stream counts."""
        found = await self._peers.ask_all("listening", _named(session, self._endpoint), within=ASK_SECONDS)
        ages = {name: float(about["age"]) for name, about in found.items() if about.get("listening") is True}
        session.stream_at = min(ages, key=lambda name: ages[name]) if ages else ""
        return bool(ages)

    async def _carry(self, session: HttpSession) -> None:
        waiting = self._waiting[session]
        try:
            while waiting and not session.ended:
                await self._carry_one(session, waiting.popleft())
        finally:
            del self._waiting[session]

    async def _carry_one(self, session: HttpSession, message: bytes) -> None:
        # The second time the client may have its stream elsewhere: it is looked for again, once.
        for known in (True, False):
            if not (known and session.stream_at) and not await self.find(session):
                return
            try:
                about = _named(session, self._endpoint)
                said = await self._peers.ask(session.stream_at, "deliver", about, message, within=ASK_SECONDS)
            except (PeerUnreachable, PeerRefused):
                said = {}
            except PeerFailed:
                return  # it may have been delivered: a second time would be wrong
            if said.get("delivered") is True:
                return
            session.stream_at = ""


def _named(session: HttpSession, endpoint: str | None) -> dict[str, Any]:
    """How replicas name a session to each other."""
    return {"session": session.id, "endpoint": endpoint, "principal": session.principal.name}


def _passed_on(headers: Mapping[str, str]) -> bytes:
    """The headers of an answer, without those of its connection."""
    lines = (f"{name}: {value}\r\n" for name, value in headers.items() if name not in _OF_CONNECTION)
    return "".join(lines).encode("latin-1")


# The other end.


_HEADERS: Final = frozenset({ABOUT_HEADER, SENDER_HEADER, TARGET_HEADER, PRINCIPAL_HEADER})


class PeerListener:
    """Serves the other replicas. It is the ``MessageEndpoint`` of their connections."""

    def __init__(self, front: Front, peers: Peers, users: MessageEndpoint, is_home: Callable[[str], bool]) -> None:
        """``users`` serves the slots of users at other replicas whose processes run here, as ``is_home`` says."""
        self._front = front
        self._users = users
        self._is_home = is_home
        self._peers = peers
        self.retiring = False
        """Replicas close their connections themselves."""
        self._acceptor: Acceptor | None = None
        self._server = HttpConnections(self, trusts=peers.identity.trusts)

    @property
    def bodies(self) -> BodyBudget:
        """The room for bodies, that of all clients."""
        return self._front.bodies

    async def run(self) -> None:
        """Accept until cancelled; then close what is open."""
        listener, self._peers.listener = self._peers.listener, None
        if listener is None:
            return  # the others cannot reach this replica
        tls = None if self._peers.address.startswith("unix:") else self._peers.identity.server()
        self._acceptor = Acceptor(listener, self._server.connection, limits=ConnectionLimits(), tls=tls)
        try:
            await anyio.sleep_forever()
        finally:
            self.close()
            with anyio.CancelScope(shield=True):
                await self._acceptor.wait_closed()
                await self._server.close(0)

    @property
    def connections(self) -> set[HttpConnection]:
        """The connections of other replicas that are open."""
        return self._server.connections

    def close(self) -> None:
        """Accept nothing any more, and close what is open."""
        if self._acceptor is not None:
            self._acceptor.close()
        for one in list(self.connections):
            one.out.abort()

    async def admit(self, request: Request, reply: Reply) -> RequestHandler | None:
        """The endpoint that answers a request of another replica; None if it has its answer."""
        headers = request.headers
        request.admission.accepted("replicas", None)  # it is one of this fleet, and gives way to no stranger
        if TARGET_HEADER not in headers and is_endpoint(request.head.path):
            # The slot of a user whose home this is; else two replicas would wait for each other.
            if self._is_home(principal_in(headers)):
                return await self._users.admit(request, reply)
            refuse_forwarded(reply, 421, "the processes of this user are on another replica now")
            return None
        about = said_in(headers.get(ABOUT_HEADER, ""))
        if unquote(headers.get(TARGET_HEADER, "")) != self._peers.replica:
            refuse_forwarded(reply, 409, "another replica has this address now")
            return None
        if request.head.path.startswith(OPERATIONS):
            await self._operate(request.head.path.removeprefix(OPERATIONS), about, request, reply)
            return None
        self._peers.note_leaving(map(str, about.get("leaving") or ()))
        if self._front.refusing:
            refuse_forwarded(reply, 503, "it is shutting down")
            return None
        endpoint = self._front.endpoint_of(EndpointAddress.of_label(about.get("endpoint")))
        if endpoint is None:
            refuse_forwarded(reply, 409, "it has no such server")
            return None
        request.principal = _principal(said_in(headers.get(PRINCIPAL_HEADER, "")))
        request.headers = {name: value for name, value in headers.items() if name not in _HEADERS}
        request.forwarded = True
        return endpoint

    async def _operate(self, operation: str, about: Mapping[str, Any], request: Request, reply: Reply) -> None:
        body = await request.body(LARGEST_MESSAGE)
        session = self._session(about) if "session" in about else None
        match operation:
            case "cancel":
                cancelled = session is not None and session.exchange.cancel(about.get("request", ""))
                reply.plain(200, dumps({"cancelled": cancelled}))
            case "listening":
                # Its age: the clocks of two machines cannot be compared.
                age = time.monotonic() - session.listening_since if session is not None else 0.0
                reply.plain(200, dumps({"listening": session is not None and session.listening, "age": age}))
            case "deliver":
                delivered = session is not None and session.listening
                if session is not None and delivered:
                    session.notices.send(body)
                reply.plain(200, dumps({"delivered": delivered}))
            case "forget":
                self._front.release(ClientKey(str(about.get("principal")), str(about.get("key"))))
                reply.plain(200, b"{}")
            case _:
                refuse_forwarded(reply, 409, f"it knows no {operation[:50]}")

    def _session(self, about: Mapping[str, Any]) -> HttpSession | None:
        endpoint = self._front.endpoint_of(EndpointAddress.of_label(about.get("endpoint")))
        if endpoint is None:
            return None
        return endpoint.sessions.in_use(endpoint, str(about.get("session")), str(about.get("principal")))


def refuse_forwarded(reply: Reply, status: int, reason: str) -> None:
    """Refuse what another replica sent, with a reason that is for that replica."""
    reply.plain(status, b"{}", JSON_HEADER + f"{REFUSED_HEADER}: {quote(reason, safe=' ')}\r\n".encode("latin-1"))


def _principal(said: Mapping[str, Any]) -> Principal:
    source = said.get("source")
    return Principal(
        name=str(said.get("name", "")),
        groups=frozenset(map(str, said.get("groups", ()))),
        scopes=frozenset(map(str, said.get("scopes", ()))),
        source=source if source in ("local", "token", "jwt", "gateway", "hub") else "local",
    )
