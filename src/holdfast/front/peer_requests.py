"""Requests of clients that belong to another replica: sends them there, and streams the answers back.

A request belongs to the replica that its id names: an answer to a question, the stream of an event id, a pending call,
a client with connections of its own. It is sent on as the HTTP request that it is (``fleet.Peers``). A cancellation
names only the client's own id, so it goes to all replicas. ``peer_listener`` is the other end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from holdfast.access import ClientKey, Principal
from holdfast.core import replica_tag, replicas_with_tag, tag_of_question
from holdfast.endpoint import LivesElsewhere, Message
from holdfast.fleet import (
    ABOUT_HEADER,
    PRINCIPAL_HEADER,
    PeerFailed,
    PeerLeaves,
    PeerRefused,
    Peers,
    PeerUnreachable,
    written,
)
from holdfast.front.peer_notices import ASK_SECONDS, session_named
from holdfast.front.requests import Reply, Request
from holdfast.front.streams import tag_of_event

if TYPE_CHECKING:
    from holdfast.front.sessions import HttpSession
    from holdfast.wire import Response

__all__ = ["PeerRequests", "RequestOwner"]

log = logging.getLogger("holdfast.front")

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

MOST_TRIES: Final = 3
"""How often a request looks for the replica that it belongs to."""

UNKNOWN_QUESTION: Final = (
    "this question is not open: it was asked before the hub was restarted, or by another replica; "
    "the call that it belongs to has ended"
)
_OUTCOME_UNKNOWN: Final = (
    "the replica that served this request broke off: whether the server carried the request out is not known"
)


class RequestOwner(NamedTuple):
    """The endpoint of a request, by its server, and the principal that sent it."""

    endpoint: str | None
    principal: Principal


class PeerRequests:
    """The way of requests between this replica and the others."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    @property
    def tag(self) -> str:
        """Names this replica in ids that clients get."""
        return replica_tag(self._peers.replica)

    async def with_tag(self, tag: str) -> list[str]:
        """The other replicas that a tag may name; one that just joined is looked for."""
        found = replicas_with_tag(tag, self._peers.present)
        if not found and tag != self.tag:
            await self._peers.directory.look_again()
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
            with anyio.fail_after(ASK_SECONDS):
                async with self._sent(replica, request, owner) as answer:
                    await answer.read(LARGEST_ANSWER)
        except (PeerUnreachable, PeerRefused, PeerFailed, TimeoutError) as exc:
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
        relayed = reply.hand_over()
        began = False
        with anyio.CancelScope() as scope, request.ending_with_client(scope.cancel):
            try:
                async with self._sent(replica, request, owner) as answer:
                    began, status, headers = True, answer.status, _passed_on(answer.headers)
                    if "text/event-stream" not in answer.headers.get("content-type", ""):
                        began = False
                        whole = await answer.read(LARGEST_ANSWER)
                        began = True
                        relayed.plain(status, bytes(whole or b""), headers)
                        return
                    relayed.head(status, headers)
                    while (piece := await answer.next_chunk()) is not None:
                        relayed.piece(bytes(piece))
                        if reply.unread > UNREAD_BYTES:
                            await reply.drained()
                    relayed.end()
            except PeerFailed as exc:
                if not began:
                    raise
                log.info("the replica %s broke off an answer: %s", replica, exc)
                reply.abort()  # its client comes back with the last event that it saw
            finally:
                if not began:
                    relayed.take_back()

    def _sent(self, replica: str, request: Request, owner: RequestOwner) -> AbstractAsyncContextManager[Response]:
        headers = {name: value for name, value in request.headers.items() if name not in _NOT_FORWARDED}
        headers[PRINCIPAL_HEADER] = written(_principal(owner.principal))
        headers[ABOUT_HEADER] = written({"endpoint": owner.endpoint, "leaving": sorted(self._peers.leaving)})
        return self._peers.request(replica, request.method, request.path, headers, request.whole)

    # A cancelled request.

    async def cancel(self, session: HttpSession, endpoint: str | None, request: str | int) -> None:
        """A client gave up a request that is not served here: tell the others."""
        await self._peers.ask_all(
            "cancel", {**session_named(session, endpoint), "request": request}, within=ASK_SECONDS
        )

    # A client that ended its connections.

    async def forget_client(self, owner: ClientKey) -> None:
        """Tell the others, because its connections may be there."""
        await self._peers.ask_all("forget", {"principal": owner.principal, "key": owner.key}, within=ASK_SECONDS)


def _principal(principal: Principal) -> dict[str, Any]:
    return {
        "name": principal.name,
        "groups": sorted(principal.groups),
        "scopes": sorted(principal.scopes),
        "source": principal.source,
    }


def _passed_on(headers: Mapping[str, str]) -> bytes:
    """The headers of an answer, without those of its connection."""
    lines = (f"{name}: {value}\r\n" for name, value in headers.items() if name not in _OF_CONNECTION)
    return "".join(lines).encode("latin-1")
