"""Requests of clients between replicas: sends those that belong to another one there, and serves those that come here.

What comes here is verified again: a session id opens only for its principal, a question is answered only in its own
session, and a pending call only by the same request of the same principal. A forwarded request goes no further.

    mcp        a whole request; the answer is whole, or an event stream
    cancel     a client gave up a request: the replica that serves it ends it
    listening  whether a client's stream of notices is open here, and for how long
    deliver    a message for that stream
    forget     a client with a key ended its connections
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import anyio
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from holdfast.access import ClientKey, Principal
from holdfast.core import replica_tag, replicas_with_tag, tag_of_question
from holdfast.endpoint import LivesElsewhere, Message
from holdfast.fleet import PeerFailed, PeerRefused, PeerReply, PeerRequest, Peers, PeerUnreachable
from holdfast.front.forwarded import ForwardedConnection
from holdfast.front.requests import Reply, Request
from holdfast.front.streams import tag_of_event

if TYPE_CHECKING:
    from holdfast.front.sessions import HttpSession

__all__ = ["PeerRequests", "RequestOwner"]

log = logging.getLogger("holdfast.front")

ASK_SECONDS: Final = 2.0
"""How long another replica may take for a short answer."""
AT_ONCE: Final = 8
"""Replicas that are asked at the same time."""
MOST_WAITING: Final = 1_000
"""Messages of one session that wait for their way to another replica; then the oldest are dropped."""
UNREAD_BYTES: Final = 1024 * 1024
"""How much of a forwarded answer may wait for a client that reads slowly."""

_NOT_FORWARDED: Final = frozenset(
    {"authorization", "connection", "content-length", "cookie", "expect", "holdfast-gateway-secret", "host",
     "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Headers of the connection, and credentials: the other replica gets the principal that they stand for."""

MOST_TRIES: Final = 3
"""How often a request looks for the replica that it belongs to."""

UNKNOWN_QUESTION: Final = (
    "this question is not open: it was asked before the hub was restarted, or by another replica; "
    "the call that it belongs to has ended"
)
_MOVED: Final = "the connections of this client are on another replica now"
_OUTCOME_UNKNOWN: Final = (
    "the replica that served this request broke off: whether the server carried the request out is not known"
)


class RequestOwner(NamedTuple):
    """The endpoint of a request, by its server, and the principal that sent it."""

    endpoint: str | None
    principal: Principal


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


class EndpointsOfHub(Protocol):
    """All endpoints of a hub."""

    refusing: bool
    """Whether new requests are refused."""

    def endpoint_of(self, server: str | None) -> ReachedEndpoint | None:
        """One endpoint; None if there is no such server."""

    def release(self, owner: ClientKey) -> None:
        """Close the connections of a client that ended them."""


class PeerRequests:
    """The way of requests between this replica and the others."""

    def __init__(self, hub: EndpointsOfHub, peers: Peers) -> None:
        self._hub = hub
        self._peers = peers
        self._limit = anyio.CapacityLimiter(AT_ONCE)
        self._waiting: dict[HttpSession, deque[bytes]] = {}
        peers.handle("mcp", self._serve)
        peers.handle("cancel", self._cancel)
        peers.handle("listening", self._listening)
        peers.handle("deliver", self._deliver)
        peers.handle("forget", self._forget)

    @property
    def tag(self) -> str:
        """Names this replica in ids that clients get."""
        return replica_tag(self._peers.replica)

    async def with_tag(self, tag: str) -> list[str]:
        """The other replicas that a tag may name; one that just joined is looked for."""
        found = replicas_with_tag(tag, self._peers.present)
        if not found and tag != self.tag:
            await self._peers.look_again()
            found = replicas_with_tag(tag, self._peers.present)
        return found

    # A whole request.

    async def answer(self, elsewhere: LivesElsewhere, request: Request, reply: Reply, owner: RequestOwner) -> bool:
        """Let the replica answer that a request belongs to; False if the request has to look again where it belongs.

        That replica may be gone, or have it no more. Raises ``MCPError`` if the request is lost with it.
        """
        try:
            await self.relay(elsewhere.replica, request, reply, owner)
        except (PeerUnreachable, PeerRefused) as exc:
            if elsewhere.find_again is None:
                raise MCPError(INVALID_PARAMS, f"{elsewhere.lost} ({exc})") from exc
            # One that moved is asked for again. One that is dead or leaves is replaced.
            await elsewhere.find_again(str(exc) != _MOVED)
            return False
        except PeerFailed as exc:
            raise MCPError(INTERNAL_ERROR, f"{_OUTCOME_UNKNOWN} ({exc})") from exc
        return True

    async def pass_answer(self, message: Message, request: Request, reply: Reply, owner: RequestOwner) -> str | None:
        """Pass a client's answer to the replica that asked; else why it could not be passed."""
        if not isinstance(message.key, int) or request.forwarded:
            return UNKNOWN_QUESTION
        problem = await self.relay_to_one(await self.with_tag(tag_of_question(message.key)), request, reply, owner)
        if problem is None:
            return None
        return (
            f"the replica that asked this question did not take the answer: {problem}" if problem else UNKNOWN_QUESTION
        )

    async def resume(self, event_id: str, request: Request, reply: Reply, owner: RequestOwner) -> bool:
        """Let the replica of an event go on with its stream; False if no other replica does."""
        if request.forwarded:
            return False
        return await self.relay_to_one(await self.with_tag(tag_of_event(event_id)), request, reply, owner) is None

    async def pass_notice(self, replica: str, request: Request, owner: RequestOwner) -> None:
        """Pass a client's notification to the replica with its connections; it has no answer."""
        try:
            await self._peers.ask(replica, "mcp", _about(request, owner), request.whole, within=ASK_SECONDS)
        except (PeerUnreachable, PeerRefused, PeerFailed) as exc:
            log.info("a notification of a client did not reach its connections: %s", exc)

    async def relay_to_one(
        self, replicas: Iterable[str], request: Request, reply: Reply, owner: RequestOwner
    ) -> str | None:
        """Let the first of these replicas answer that does; else why none did, which is empty for none at all."""
        problem = ""
        for replica in replicas:
            try:
                await self.relay(replica, request, reply, owner)
            except (PeerUnreachable, PeerRefused, PeerFailed) as exc:
                problem = str(exc)
            else:
                return None
        return problem

    async def relay(self, replica: str, request: Request, reply: Reply, owner: RequestOwner) -> None:
        """Let another replica answer. Raises ``PeerUnreachable``, ``PeerRefused`` or ``PeerFailed`` before it began."""
        before = request.on_gone
        take_back = reply.hand_over()
        began = False
        with anyio.CancelScope() as scope:
            request.on_gone = scope.cancel
            try:
                async with self._peers.request(replica, "mcp", _about(request, owner), request.whole) as answer:
                    status, headers = int(answer.about["status"]), str(answer.about["headers"]).encode("latin-1")
                    if answer.about.get("plain"):
                        whole = await answer.body()
                        began = True
                        reply.pass_plain(status, whole, headers)
                        return
                    began = True
                    reply.pass_head(status, headers)
                    while (piece := await answer.next_piece()) is not None:
                        reply.pass_piece(piece)
                        if reply.unread > UNREAD_BYTES:
                            await reply.drained()
                    reply.pass_end()
            except PeerFailed as exc:
                if not began:
                    raise
                log.info("the replica %s broke off an answer: %s", replica, exc)
                reply.abort()  # its client comes back with the last event that it saw
            finally:
                request.on_gone = before
                if not began:
                    take_back()

    async def _serve(self, asked: PeerRequest, answer: PeerReply) -> None:
        about = asked.about
        endpoint = self._hub.endpoint_of(about.get("endpoint"))
        if self._hub.refusing or endpoint is None:
            answer.refuse("it is shutting down, or has no such server")
            return
        connection = ForwardedConnection(answer)
        headers = {str(name): str(value) for name, value in about["headers"].items()}
        request = connection.request(str(about["method"]), str(about["path"]), headers, asked.body)
        try:
            await endpoint.serve(request, Reply(connection, connection, request), _principal(about["principal"]))
        except LivesElsewhere:
            answer.refuse(_MOVED)
        finally:
            connection.disarm()

    # A cancelled request.

    async def cancel(self, session: HttpSession, endpoint: str | None, request: str | int) -> None:
        """A client gave up a request that is not served here: tell the others."""
        await self._ask_all("cancel", {**_named(session, endpoint), "request": request})

    async def _cancel(self, asked: PeerRequest, answer: PeerReply) -> None:
        session = self._session(asked.about)
        cancelled = session is not None and session.exchange.cancel(asked.about.get("request", ""))
        answer.answer({"cancelled": cancelled})

    # A client that ended its connections.

    async def forget_client(self, owner: ClientKey) -> None:
        """Tell the others, because its connections may be there."""
        await self._ask_all("forget", {"principal": owner.principal, "key": owner.key})

    async def _forget(self, asked: PeerRequest, answer: PeerReply) -> None:
        self._hub.release(ClientKey(str(asked.about["principal"]), str(asked.about["key"])))

    # Messages for a client whose stream is elsewhere.

    async def find_stream(self, session: HttpSession, endpoint: str | None) -> bool:
        """Look for the replica that has a session's stream of notices; the newest stream counts."""
        found = await self._ask_all("listening", _named(session, endpoint))
        ages = {name: float(about["age"]) for name, about in found.items() if about.get("listening") is True}
        session.stream_at = min(ages, key=lambda name: ages[name]) if ages else ""
        return bool(ages)

    async def _listening(self, asked: PeerRequest, answer: PeerReply) -> None:
        session = self._session(asked.about)
        listening = session is not None and session.listening
        # Its age: the clocks of two machines cannot be compared.
        age = time.monotonic() - session.listening_since if session is not None else 0.0
        answer.answer({"listening": listening, "age": age})

    def post(self, session: HttpSession, message: bytes) -> bool:
        """A message for a stream that is not here; True if a task has to be started that ``carry``s it."""
        waiting = self._waiting.get(session)
        if waiting is not None:
            waiting.append(message)
            return False
        self._waiting[session] = deque((message,), maxlen=MOST_WAITING)
        return True

    async def carry(self, session: HttpSession, endpoint: str | None) -> None:
        """Take a session's messages to its stream, in their order; those without a stream stay in the log here."""
        waiting = self._waiting[session]
        try:
            while waiting and not session.ended:
                await self._carry_one(session, endpoint, waiting.popleft())
        finally:
            del self._waiting[session]

    async def _carry_one(self, session: HttpSession, endpoint: str | None, message: bytes) -> None:
        for known in (True, False):
            if not (known and session.stream_at) and not await self.find_stream(session, endpoint):
                return
            try:
                about = _named(session, endpoint)
                said, _ = await self._peers.ask(session.stream_at, "deliver", about, message, within=ASK_SECONDS)
            except (PeerUnreachable, PeerRefused):
                said = {}
            except PeerFailed:
                return  # it may have been delivered: a second time would be wrong
            if said.get("delivered") is True:
                return
            session.stream_at = ""

    async def _deliver(self, asked: PeerRequest, answer: PeerReply) -> None:
        session = self._session(asked.about)
        delivered = session is not None and session.listening
        if session is not None and delivered:
            session.notices.send(asked.body)
        answer.answer({"delivered": delivered})

    # All of them.

    def _session(self, about: Mapping[str, Any]) -> HttpSession | None:
        endpoint = self._hub.endpoint_of(about.get("endpoint"))
        if endpoint is None:
            return None
        return endpoint.sessions.in_use(str(about.get("session")), str(about.get("principal")))

    async def _ask_all(self, operation: str, about: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The answers of the other replicas; one that does not answer is left out."""
        found: dict[str, Mapping[str, Any]] = {}

        async def ask(replica: str) -> None:
            async with self._limit:
                try:
                    found[replica], _ = await self._peers.ask(replica, operation, about, within=ASK_SECONDS)
                except (PeerUnreachable, PeerRefused, PeerFailed) as exc:
                    log.debug("%s was not asked at %s: %s", operation, replica, exc)

        async with anyio.create_task_group() as tasks:
            for replica in self._peers.others:
                tasks.start_soon(ask, replica)
        return found


def _about(request: Request, owner: RequestOwner) -> dict[str, Any]:
    principal = owner.principal
    return {
        "endpoint": owner.endpoint,
        "method": request.method,
        "path": request.path,
        "headers": {name: value for name, value in request.headers.items() if name not in _NOT_FORWARDED},
        "principal": {
            "name": principal.name,
            "groups": sorted(principal.groups),
            "scopes": sorted(principal.scopes),
            "source": principal.source,
        },
    }


def _named(session: HttpSession, endpoint: str | None) -> dict[str, Any]:
    return {"session": session.id, "endpoint": endpoint, "principal": session.principal.name}


def _principal(said: Mapping[str, Any]) -> Principal:
    source = said["source"]
    return Principal(
        name=str(said["name"]),
        groups=frozenset(map(str, said["groups"])),
        scopes=frozenset(map(str, said["scopes"])),
        source=source if source in ("local", "token", "jwt", "gateway") else "local",
    )
