"""GET: a session's stream of notices, or a stream that broke and goes on.

A client comes back with the id of the last event that it saw. If the log here has it, the stream goes on from there. If
another replica has it, that one goes on with it. If no replica does, what the replicas shared of it is sent. What is
lost then is said: a request whose answer is lost gets an error, and for notices the client is told to list again what
may have changed meanwhile. A stream goes on only for a caller with the rights of the one that it was made for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from mcp_types import INTERNAL_ERROR, ErrorData

from holdfast.endpoint import McpServer, error_message
from holdfast.fleet import SharedEvent
from holdfast.front.peer_requests import PeerRequests, RequestOwner
from holdfast.front.requests import Reply, Request
from holdfast.front.session_id import SessionIds
from holdfast.front.sessions import HttpSession, HttpSessions
from holdfast.front.streams import LostEvent, lost_event

__all__ = ["StreamOpener"]

ANSWER_LOST: Final = ErrorData(
    code=INTERNAL_ERROR,
    message="the answer to this request is lost: the hub was restarted, its events are no longer kept, or they were "
    "for a caller with other rights. "
    "Whether the server carried the request out is not known.",
)


class StreamOpener:
    """Opens and resumes the streams of one endpoint."""

    def __init__(self, server: McpServer, sessions: HttpSessions, ids: SessionIds, peers: PeerRequests | None) -> None:
        self._server = server
        self._sessions = sessions
        self._ids = ids
        self._peers = peers

    async def open(self, request: Request, reply: Reply, session: HttpSession) -> bool:
        """Serve a stream until it ends; False if the session has its stream of notices already."""
        last = request.headers.get("last-event-id")
        session.client.identity = request.principal  # from now on its notices are for this credential
        if last is not None and session.log.stream_of(last) is None and self._peers is not None:
            owner = RequestOwner(self._server.view.label, request.principal)
            if await self._peers.resume(last, request, reply, owner):
                return True
        reply.streams = True
        reply.wait_for_result(session.header)
        rights = session.client.seen.rights
        found = session.log.stream_of(last) if last is not None else None
        if found is not None and found[0].rights != rights:
            found = None  # what it says was for other eyes: another token of the principal, or other rules
        lost = lost_event(last) if last is not None and found is None else None
        if found is not None:
            stream, number = found
            reply.begin()
            stream.resume(reply, number)
            if stream is session.notices:
                session.missed = False  # it was in what followed
                session.opened()
        elif last is None or (lost is not None and not lost.call):
            if not await self._open_notices(session, lost, reply):
                return False
        else:
            reply.begin()
            if lost is not None:
                await self._resume_lost(session, lost, reply)
            reply.end()
        await reply.ended()
        return True

    async def _open_notices(self, session: HttpSession, lost: LostEvent | None, reply: Reply) -> bool:
        missed = [event async for event in self._shared(session, lost, reply)] if lost is not None else []
        if session.listening:
            return False
        session.notices.reply, session.notices.rights = reply, session.client.seen.rights
        reply.begin()
        for event_id, event in missed:
            reply.event(event.message, event_id=event_id)
        session.opened()
        if session.rebuilt or session.missed or lost is not None:
            session.rebuilt = session.missed = False
            self._server.broker.start(self._tell_missed, session)
        self._sessions.keep_lists(session)
        return True

    async def _tell_missed(self, session: HttpSession) -> None:
        """Let a client list and read again what may have changed while it could not be told."""
        client = session.client
        # Another worker may have given out a list: the file has what all of them gave out.
        listed = client.listed if self._peers is None else await self._ids.listed(session.ticket)
        await self._server.of(client.principal).own.tell_missed(client, listed)

    async def _resume_lost(self, session: HttpSession, lost: LostEvent, reply: Reply) -> None:
        """Send what followed in the stream of a request on another replica; or that its answer is lost."""
        async for event_id, event in self._shared(session, lost, reply):
            reply.event(event.message, event_id=event_id)
            if event.final:
                return
        if lost.request is not None:
            reply.event(error_message(lost.request, ANSWER_LOST))

    async def _shared(
        self, session: HttpSession, lost: LostEvent, reply: Reply
    ) -> AsyncIterator[tuple[bytes, SharedEvent]]:
        """The events of a stream that another replica had, with their ids, as far as the replicas share them."""
        if self._ids.events is None or session.client.seen.rights:
            return  # whose rights these events were for is not known
        following = self._ids.events.follow(
            session.ticket.id,
            lost.mark,
            lost.suffix,
            after=lost.number,
            wanted=lambda: not reply.lost and not session.ended,
        )
        async for event in following:
            yield f"{lost.mark}.{event.number}{lost.suffix}".encode(), event
