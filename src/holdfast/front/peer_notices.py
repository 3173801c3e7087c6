"""Notices for a client whose stream is on another replica: finds that stream, and takes the messages there in order.

A notice is sent once. If the connection breaks after it was sent, it may have been delivered, and is not sent again. A
message that finds no stream stays in the log of its session, which a client reads when it comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.fleet import PeerFailed, PeerRefused, Peers, PeerUnreachable

if TYPE_CHECKING:
    from holdfast.front.sessions import HttpSession

__all__ = ["ASK_SECONDS", "NoticesElsewhere", "session_named"]

ASK_SECONDS: Final = 2.0
"""How long another replica may take for a short answer."""
MOST_WAITING: Final = 1_000
"""Messages of one session that wait for their way to another replica; then the oldest are dropped."""


class NoticesElsewhere:
    """The streams of notices of an endpoint's sessions that may be on other replicas."""

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
        found = await self._peers.ask_all("listening", session_named(session, self._endpoint), within=ASK_SECONDS)
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
        for known in (True, False):
            if not (known and session.stream_at) and not await self.find(session):
                return
            try:
                about = session_named(session, self._endpoint)
                said = await self._peers.ask(session.stream_at, "deliver", about, message, within=ASK_SECONDS)
            except (PeerUnreachable, PeerRefused):
                said = {}
            except PeerFailed:
                return  # it may have been delivered: a second time would be wrong
            if said.get("delivered") is True:
                return
            session.stream_at = ""

    def __repr__(self) -> str:
        return f"<NoticesElsewhere of {self._endpoint or 'all servers'}, {len(self._waiting)} sessions waiting>"


def session_named(session: HttpSession, endpoint: str | None) -> dict[str, Any]:
    """How replicas name a session to each other."""
    return {"session": session.id, "endpoint": endpoint, "principal": session.principal.name}
