"""The state of sessions in a fleet: what one replica knows about a session, all of them know within a second.

Nothing here waits for the store. A change goes out with the next exchange, and every replica has a copy of all states:
so a session is rebuilt without a question to anyone. The store is not trusted with the content: it is sealed with a key
that is derived for each session from the session key. A file of this machine, if there is one, keeps the same beside.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import anyio
import msgspec

from holdfast.fleet import SESSION_PURPOSE, Fleet
from holdfast.front.session_id import SessionKeys
from holdfast.front.session_store import IDLE_SECONDS, NOTE_SECONDS, MemorySessions, SessionRecord, SessionStore

__all__ = ["FleetSessions"]

LARGEST_STATE: Final = 16 * 1024
"""Bytes. A session with more subscriptions than fit shares its log level and its last use alone."""
KEPT_SECONDS: Final = IDLE_SECONDS + 2 * NOTE_SECONDS
"""How long a state is kept after the last use: by then every replica takes the session for expired."""


class FleetSessions:
    """A ``SessionStore`` that the replicas of a fleet share."""

    def __init__(
        self,
        fleet: Fleet,
        keys: SessionKeys,
        beside: SessionStore | None = None,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._keys = keys
        self._beside = beside or MemorySessions()
        self._wall = wall

    @property
    def shared(self) -> bool:
        """Whether every use of a session is known here; not while the store is away."""
        return self._fleet.state.keeps_all

    async def load(self, session: bytes) -> SessionRecord | None:
        """The record of a session: the later one of the fleet's and of this machine's. An ended session is ended."""
        own, fleets = await self._beside.load(session), self._shared_record(session)
        found = max(filter(None, (own, fleets)), key=lambda one: one.seen, default=None)
        if self._fleet.state.kept(_ended(session)) is not None or (own is not None and own.ended):
            found = found or SessionRecord(until=0.0, seen=0.0)
            return replace(found, ended=True)
        return found

    async def save(self, session: bytes, record: SessionRecord) -> None:
        """Keep a record: for the fleet with the next exchange, and on this machine when this returns."""
        until = min(record.until, self._wall() + KEPT_SECONDS)
        if record.ended:
            self._fleet.state.write(_ended(session), {"until": until})
        else:
            self._fleet.state.write(_state(session), {"until": until, "sealed": self._sealed(session, record)})
        await self._beside.save(session, record)

    async def load_listed(self, session: bytes) -> Mapping[str, str] | None:
        """The lists that a session's client has, as far as this machine knows."""
        return await self._beside.load_listed(session)

    async def save_listed(self, session: bytes, listed: Mapping[str, str], *, until: float) -> None:
        """Keep the lists that a client has, on this machine: a row for each session is too much for the fleet."""
        await self._beside.save_listed(session, listed, until=until)

    async def run(
        self, on_ended: Callable[[bytes], None], on_changed: Callable[[bytes, SessionRecord], None] | None = None
    ) -> None:
        """Report what other replicas, and other hubs of this machine, ended and changed, until cancelled."""

        def ended(name: str, _: Mapping[str, Any]) -> None:
            if (session := _session(name)) is not None:
                on_ended(session)

        def changed(name: str, value: Mapping[str, Any]) -> None:
            if on_changed is None or (session := _session(name)) is None:
                return
            if (record := self._opened(session, value)) is not None:
                on_changed(session, record)

        self._fleet.listen("ended", ended)
        self._fleet.listen("session", changed)
        await self._beside.run(on_ended, on_changed)
        await anyio.sleep_forever()

    def _shared_record(self, session: bytes) -> SessionRecord | None:
        value = self._fleet.state.kept(_state(session))
        return self._opened(session, value) if value is not None else None

    def _sealed(self, session: bytes, record: SessionRecord) -> str:
        content = [record.until, record.seen, record.log_level, sorted(record.subscribed)]
        written = msgspec.msgpack.encode(content)
        if len(written) > LARGEST_STATE:
            written = msgspec.msgpack.encode([*content[:3], []])
        sealed = self._keys.ring.seal(written, purpose=SESSION_PURPOSE, about=b"state", salt=session)
        return base64.b64encode(sealed).decode()

    def _opened(self, session: bytes, value: Mapping[str, Any]) -> SessionRecord | None:
        try:
            sealed = base64.b64decode(str(value["sealed"]), validate=True)
            content = self._keys.ring.open(sealed, purpose=SESSION_PURPOSE, about=b"state", salt=session)
            if content is None:
                return None
            until, seen, level, subscribed = msgspec.msgpack.decode(content, type=_Content)
        except (KeyError, binascii.Error, ValueError, msgspec.MsgspecError):
            return None
        return SessionRecord(until=until, seen=seen, log_level=level, subscribed=frozenset(subscribed))


_Content = tuple[float, float, str | None, list[tuple[str, str]]]


def _ended(session: bytes) -> str:
    return f"ended/{session.hex()}"


def _state(session: bytes) -> str:
    return f"session/{session.hex()}"


def _session(name: str) -> bytes | None:
    try:
        return bytes.fromhex(name)
    except ValueError:
        return None
