"""Makes and opens the ids of legacy sessions: the ticket in the id, and what the store knows about the session.

Whether a session idled too long is judged where all of its uses are known: with a key of the hub's own, or in a store
that all holders of the key share. A hub that shares its key without such a store may not have seen the latest use, so
for it a session ends 30 days after it began, or when its client ends it there.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from holdfast.front.seal import IDLE_SECONDS, SESSION_SECONDS, SessionTicket, fitted, is_expired
from holdfast.front.session_keys import SessionKeys
from holdfast.front.session_store import NOTE_SECONDS, MemorySessions, SessionRecord, SessionStore
from holdfast.front.shared_events import SharedEvents

__all__ = ["SessionIds"]

log = logging.getLogger("holdfast.front")

MOST_ENDED = 10_000
"""How many ended sessions are remembered beside the store, so that no rebuild under way revives one."""


class SessionIds:
    """The ids of one hub; all of its endpoints share them."""

    def __init__(
        self,
        keys: SessionKeys | None = None,
        store: SessionStore | None = None,
        *,
        home: str = "",
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.keys = keys or SessionKeys.for_this_process()
        self.store: SessionStore = store or MemorySessions()
        self.home = home or secrets.token_hex(4)
        """Names this process in the ids that it makes."""
        self.wall = wall
        self.events: SharedEvents | None = None
        """The events of sessions, for other replicas; None for a hub that is alone."""
        self.one_machine = False
        """Whether all hubs that share the key are workers of one supervisor, and use the same file."""
        self._ended: dict[bytes, None] = {}

    def issue(
        self,
        *,
        endpoint: str | None,
        principal: str,
        version: str,
        client: Mapping[str, str],
        capabilities: Mapping[str, Any],
    ) -> tuple[str, SessionTicket]:
        """A new id, and the ticket in it. Capabilities that do not fit are dropped, and reported in the log."""
        ticket, dropped = fitted(
            SessionTicket(
                secrets.token_bytes(16), version, int(self.wall()), self.home, dict(client), dict(capabilities)
            )
        )
        if dropped:
            log.warning(
                "the client %r declares more than fits a session id: without %s",
                ticket.client.get("name", ""),
                _listed(dropped),
            )
        self.keys.refresh()
        return self.keys.seal.seal(ticket, endpoint=endpoint, principal=principal), ticket

    async def open(
        self, session_id: str, *, endpoint: str | None, principal: str
    ) -> tuple[SessionTicket, SessionRecord | None] | None:
        """The ticket of an id and the record of its session; None if it is forged, foreign, expired or ended."""
        ticket = self.keys.seal.open(session_id, endpoint=endpoint, principal=principal)
        if ticket is None and self.keys.refresh(now=True):
            ticket = self.keys.seal.open(session_id, endpoint=endpoint, principal=principal)
        if ticket is None:
            return None
        record = await self.store.load(ticket.id)
        if ticket.id in self._ended or (record is not None and record.ended):
            return None
        if is_expired(ticket, now=self.wall(), seen=self._last_use(ticket, record)):
            return None
        return ticket, record

    def _last_use(self, ticket: SessionTicket, record: SessionRecord | None) -> float:
        """The latest time at which the session may have been used."""
        if self.keys.shared and not self.store.shared:
            return self.wall()
        return (record.seen if record is not None else ticket.issued) + NOTE_SECONDS

    def is_over(self, ticket: SessionTicket) -> bool:
        """Whether a session in use reached its longest life."""
        return self.wall() >= ticket.issued + SESSION_SECONDS

    async def end(self, ticket: SessionTicket) -> None:
        """The client ended its session: no hub with this store opens its id again."""
        self.ended(ticket.id)
        now = self.wall()
        await self.store.save(ticket.id, SessionRecord(until=ticket.issued + SESSION_SECONDS, seen=now, ended=True))

    def has_ended(self, ticket: SessionTicket) -> bool:
        """Whether the session was ended since it was opened: a request that waited in between must not revive it."""
        return ticket.id in self._ended

    def ended(self, session: bytes) -> None:
        """A session was ended, here or by another hub."""
        self._ended[session] = None
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    async def note(self, ticket: SessionTicket, *, seen: float) -> None:
        """Keep the time of last use. What else is kept stays: another replica may have changed it."""
        known = await self.store.load(ticket.id)
        if known is None:
            await self.keep(ticket, seen=seen)
        elif not known.ended and known.seen < seen:
            await self.store.save(ticket.id, replace(known, seen=seen))

    @property
    def knows_lists(self) -> bool:
        """Whether every list that a client was given is known here: a replica on another machine has another file."""
        return self.one_machine or not self.keys.shared

    async def listed(self, ticket: SessionTicket) -> Mapping[str, str] | None:
        """The lists that the client of a session has; None if that is not known."""
        return await self.store.load_listed(ticket.id) if self.knows_lists else None

    async def keep_listed(self, ticket: SessionTicket, listed: Mapping[str, str]) -> None:
        """Keep the lists that a client has, for as long as its session can be idle. Other lists of it stay."""
        if self.knows_lists:
            until = self.wall() + IDLE_SECONDS + 2 * NOTE_SECONDS
            await self.store.save_listed(ticket.id, listed, until=until)

    async def keep(
        self,
        ticket: SessionTicket,
        *,
        seen: float,
        log_level: str | None = None,
        subscribed: Collection[tuple[str, str]] = (),
    ) -> None:
        """Keep what a rebuilt session needs."""
        until = ticket.issued + SESSION_SECONDS
        record = SessionRecord(until=until, seen=seen, log_level=log_level, subscribed=frozenset(subscribed))
        await self.store.save(ticket.id, record)


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(repr(name[:64]) for name in list(names)[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
