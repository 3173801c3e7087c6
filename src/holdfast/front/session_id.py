"""The id of a legacy session: a sealed ticket that any hub with the key can open, and the keys that seal it.

Sessions need no home. A ticket holds what a hub needs to go on with a session that it does not know: after a restart,
on another replica, or after the session was dropped from memory. It is compressed, then sealed with AES-256-GCM. The
endpoint and the principal are authenticated with it (associated data), so that an id opens nowhere else and for no
other principal.

    base64url( format (1 byte) | nonce (12 bytes) | AES-256-GCM( deflate( msgpack( ticket ) ) ) )

The keys come from a file or a variable of the operator, which the replicas of a hub share, or from a key that the hub
makes once for itself. One key a line; the first seals, all of them open. A file is read again when it changes, so a key
is replaced without the loss of a session: write the new key above the old one, and remove the old one after 30 days.

What must never happen: an id opens that was forged, is of another endpoint or principal, expired, or was ended; a
message or a ``repr`` shows a key. What changes during a session is not in its id: ``session_store`` keeps that. Whether
a session idled too long is judged where all of its uses are known: with a key of the hub's own, or in a store that all
holders of the key share. A hub that shares its key without such a store may not have seen the latest use, so for it a
session ends 30 days after it began, or when its client ends it there.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from hashlib import blake2s
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError, UsageError
from holdfast.files import FileStamp, NotPrivate, file_stamp, make_secret, read_private
from holdfast.fleet import SharedEvents
from holdfast.front.session_store import (
    IDLE_SECONDS,
    MOST_ENDED,
    NOTE_SECONDS,
    SESSION_SECONDS,
    SessionRecord,
    SessionStore,
)
from holdfast.keys import NONCE_BYTES, SHORTEST_SECRET, TAG_BYTES, KeyRing, as_text, from_text

__all__ = ["KEY_VARIABLE", "LONGEST_ID", "SessionIds", "SessionKeys", "SessionTicket", "TicketSeal", "fitted"]

log = logging.getLogger("holdfast.front")

LONGEST_ID: Final = 1_024
"""Characters. An id travels with every request; common proxies take headers of 4 to 8 kB in all."""

FORMAT: Final = 1
PURPOSE: Final = "session id"
_DEFLATE: Final = -15
"""The window of zlib for a raw stream, without a header."""
_MOST_INFLATED: Final = 64 * 1024

_COMMON: Final = (
    b"experimental\xaaextensions\xa5tasks\xa8requests\xa5roots\x81\xablistChanged\xc2\xabelicitation\x82\xa4form\x80"
    b"\xa3url\x80\xa8sampling\x81\xa5tools\x80\xa7context\x80\x82\xa4name\xa7version\xa51.0.0\xa3mcp"
    b"claude-codecursorvscodelangchainfastmcp\xaa2024-11-05\xaa2025-03-26\xaa2025-06-18\xaa2025-11-25"
)
"""What most tickets hold. It is part of the format: another text needs another format."""


class SessionTicket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a session is rebuilt from."""

    id: bytes
    """16 random bytes: names the session in the store and in logs."""
    version: str
    """The protocol version that the handshake settled."""
    issued: int
    """Seconds since the epoch."""
    home: str
    """The hub that made it."""
    client: dict[str, str]
    """The client's name and version."""
    capabilities: dict[str, Any]
    """What the client declares."""


class TicketSeal:
    """Makes ids of tickets, and opens them: with the keys of one ring."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    def seal(self, ticket: SessionTicket, *, endpoint: str | None, principal: str) -> str:
        """The session id. ``endpoint`` is the server of the endpoint, None for the endpoint of all servers."""
        packed = _packed(msgspec.msgpack.encode(ticket))
        sealed = self._ring.seal(packed, purpose=PURPOSE, about=_bound_to(endpoint, principal))
        return as_text(bytes((FORMAT,)) + sealed)

    def open(self, session_id: str, *, endpoint: str | None, principal: str) -> SessionTicket | None:
        """The ticket of an id; None if no key of this ring sealed it for this endpoint and this principal."""
        raw = from_text(session_id) if len(session_id) <= LONGEST_ID else None
        if not raw or raw[0] != FORMAT:
            return None
        packed = self._ring.open(raw[1:], purpose=PURPOSE, about=_bound_to(endpoint, principal))
        return _unpacked(packed) if packed is not None else None


def is_expired(ticket: SessionTicket, *, now: float, seen: float) -> bool:
    """Whether a session is over that was last used at ``seen``."""
    return now >= ticket.issued + SESSION_SECONDS or now >= seen + IDLE_SECONDS


def fitted(ticket: SessionTicket) -> tuple[SessionTicket, tuple[str, ...]]:
    """The ticket in a size that fits an id, and the capabilities that were dropped from it.

    An experimental capability or an extension is dropped whole. Of any other capability the settings are dropped, and
    that the client has it stays.
    """
    client = {name: _shortened(value, _NAME_BYTES) for name, value in ticket.client.items() if name in _CLIENT_FIELDS}
    ticket = msgspec.structs.replace(ticket, client=client, home=_shortened(ticket.home, _NAME_BYTES))
    written = msgspec.msgpack.encode(ticket)
    if len(written) <= _MOST_INFLATED and len(_packed(written)) <= _ROOM:
        return ticket, ()
    room = _ROOM - len(msgspec.msgpack.encode(msgspec.structs.replace(ticket, capabilities={}))) - _OVERHEAD
    entries = sorted(_entries(ticket.capabilities), key=lambda entry: (entry[0] != "", entry[2]))
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    for group, name, size, value in entries:
        whole = size <= room
        room -= size if whole else len(name) + _OVERHEAD
        if whole:
            (kept if not group else kept.setdefault(group, {}))[name] = value
        else:
            dropped.append(f"{group}.{name}" if group else name)
            if not group and room >= 0:
                kept[name] = {}
    return msgspec.structs.replace(ticket, capabilities=kept), tuple(dropped)


_CLIENT_FIELDS: Final = ("name", "version")
_NAME_BYTES: Final = 64
_GROUPS: Final = ("experimental", "extensions")
_OVERHEAD: Final = 16
_ROOM: Final = LONGEST_ID * 3 // 4 - 1 - NONCE_BYTES - TAG_BYTES
"""Bytes of a packed ticket. Compression adds a few bytes at most where it gains nothing."""


def _entries(capabilities: Mapping[str, Any]) -> list[tuple[str, str, int, Any]]:
    """Each capability: its group (empty for those of the protocol), its name, its size and its value."""
    found = []
    for name, value in capabilities.items():
        inner = value if name in _GROUPS and isinstance(value, Mapping) else None
        for group, key, one in [("", name, value)] if inner is None else [(name, key, inner[key]) for key in inner]:
            size = len(msgspec.msgpack.encode(one)) + len(key.encode()) + len(group) + _OVERHEAD
            found.append((group, key, size, one))
    return found


def _shortened(text: str, most: int) -> str:
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _bound_to(endpoint: str | None, principal: str) -> bytes:
    return msgspec.msgpack.encode([FORMAT, endpoint, principal])


def _packed(written: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, _DEFLATE, zdict=_COMMON)
    return packer.compress(written) + packer.flush()


def _unpacked(packed: bytes) -> SessionTicket | None:
    """The ticket in what a key of ours sealed; None if it is of a form that this version does not know."""
    try:
        inflater = zlib.decompressobj(_DEFLATE, zdict=_COMMON)
        written = inflater.decompress(packed, _MOST_INFLATED)
        if not inflater.eof or inflater.unused_data:
            return None
        return msgspec.msgpack.decode(written, type=SessionTicket, strict=True)
    except (zlib.error, msgspec.MsgspecError):
        return None


# The keys.


KEY_VARIABLE = "HOLDFAST_SESSION_KEY"
REREAD_SECONDS = 1.0
"""How often the file is checked before an id is sealed. An id that does not open checks it at once."""
LARGEST_FILE = 64 * 1024
NEW_KEY = "a new session key is in use: sessions from before must reconnect"
_MAKE = "make a key: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


class SessionKeys:
    """The keys in force."""

    def __init__(
        self, keys: list[bytes], *, file: Path | None = None, shared: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._use(keys)
        self.shared = shared
        """Whether other hubs may have the keys too: a session can then be used without this hub's knowledge."""
        self.notice = ""
        """What users should know about the keys; empty if there is nothing."""
        self.on_notice: Callable[[], object] | None = None
        """Called when the notice changed."""
        self._file = file
        self._stamp = file_stamp(file) if file is not None else None
        self._clock = clock
        self._checked = clock()

    @classmethod
    def find(
        cls, *, file: Path | None = None, environ: Mapping[str, str] | None = None, kept_in: Path | None = None
    ) -> SessionKeys:
        """The keys of a file, else of the variable, else the hub's own key in a folder, else one for this process.

        Raises ``HoldfastError`` if a given file or variable has no usable key.
        """
        given = (os.environ if environ is None else environ).get(KEY_VARIABLE)
        if file is not None and given:
            raise UsageError(f"--session-key-file and {KEY_VARIABLE} exclude each other", hint="use one of them")
        if file is not None:
            return cls(_read(file), file=file, shared=True)
        if given:
            return cls(_parsed(given.encode("utf-8", "surrogateescape"), KEY_VARIABLE), shared=True)
        return cls.kept(kept_in) if kept_in is not None else cls.for_this_process()

    @classmethod
    def kept(cls, folder: Path) -> SessionKeys:
        """The hub's own key: made once, private to the user, and used by every later hub of this folder."""
        file = folder / "session.key"
        made, used = False, any(folder.glob("*.sqlite"))
        try:
            made = make_secret(file)
        except OSError as exc:
            if not file.exists():
                found = cls.for_this_process()
                found.announce(f"sessions end with this hub: no key can be kept in {folder} ({exc.strerror})")
                return found
        found = cls(_read(file), file=file, shared=False)
        if made and used:
            found.announce(NEW_KEY)
        elif made:
            log.info("made a session key in %s", file)
        return found

    @classmethod
    def for_this_process(cls) -> SessionKeys:
        """A key that ends with the process."""
        return cls([secrets.token_bytes(SHORTEST_SECRET)], shared=False)

    @property
    def is_of_one_process(self) -> bool:
        """Whether the key ends with the process."""
        return self._file is None and not self.shared

    @property
    def ring(self) -> KeyRing:
        """The keys in force, to seal and to sign with.

        The file is checked here too: a replica that begins no session must not miss what a new key signed.
        """
        self.refresh()
        return self._ring

    def label(self, name: str) -> str:
        """A name for others that have the keys, and that says nothing to anyone else."""
        return blake2s(name.encode(), key=self._label_key, digest_size=8).hexdigest()

    def refresh(self, *, now: bool = False) -> bool:
        """Read the file again if it changed; whether the keys are others. A bad file changes nothing."""
        if self._file is None or (not now and 0 <= self._clock() - self._checked < REREAD_SECONDS):
            return False
        self._checked = self._clock()
        stamp: FileStamp = file_stamp(self._file)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            keys = _read(self._file)
        except HoldfastError as exc:
            log.warning("%s; the keys read before stay in force", exc.message)
            return False
        if keys == self._keys:
            return False
        lost = not set(keys) & set(self._keys)
        self._use(keys)
        log.info("read the session keys in %s again: %d", self._file, len(keys))
        if lost:
            self.announce(NEW_KEY)
        return True

    def _use(self, keys: list[bytes]) -> None:
        self._keys = keys
        self._ring = KeyRing(keys)
        self.seal = TicketSeal(self._ring)
        self._label_key = self._ring.derived("labels")[-1]
        """Of the oldest key, which all replicas have while a key is replaced."""

    def announce(self, notice: str) -> None:
        """Log what users should know, and show it in the status."""
        self.notice = notice
        log.warning("%s", notice)
        if self.on_notice is not None:
            self.on_notice()

    def __repr__(self) -> str:
        return f"<SessionKeys of {self._file or 'memory'}: {len(self._keys)}{', shared' if self.shared else ''}>"


def _read(file: Path) -> list[bytes]:
    try:
        content = read_private(file, largest=LARGEST_FILE + 1)
    except NotPrivate as exc:
        raise HoldfastError(f"the session key is not private: {exc}", hint=f"run: {exc.command}") from exc
    except OSError as exc:
        raise HoldfastError(f"cannot read the session key file {file}: {exc.strerror}", hint="check the path") from exc
    if len(content) > LARGEST_FILE:
        raise UsageError(f"the session key file {file} is larger than {LARGEST_FILE // 1024} KiB", hint=_MAKE)
    return _parsed(content, f"the session key file {file}")


def _parsed(content: bytes, where: str) -> list[bytes]:
    keys = [line.strip() for line in content.splitlines() if line.strip()]
    if not keys:
        raise UsageError(f"{where} holds no key", hint=_MAKE)
    for number, key in enumerate(keys, 1):
        if len(key) < SHORTEST_SECRET:
            which = f"key {number} of {where}" if len(keys) > 1 else f"the key of {where}"
            raise UsageError(f"{which} has fewer than {SHORTEST_SECRET} bytes", hint=_MAKE)
    return keys


# Ids: made, opened, ended.


class SessionIds:
    """The ids of one hub; all of its endpoints share them."""

    def __init__(
        self,
        keys: SessionKeys | None = None,
        store: SessionStore | None = None,
        *,
        home: str = "",
        wall: Callable[[], float] = time.time,
        events: SharedEvents | None = None,
        one_machine: bool = False,
    ) -> None:
        self.keys = keys or SessionKeys.for_this_process()
        self.store = store or SessionStore()
        self.home = home or secrets.token_hex(4)
        """Names this process in the ids that it makes."""
        self.wall = wall
        self.events = events
        """The events of sessions, for other replicas; None for a hub that is alone."""
        self.one_machine = one_machine
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
                "the client %r declares more than fits a session id: without %d capabilities (%s)",
                ticket.client.get("name", ""),
                len(dropped),
                ", ".join(repr(name[:64]) for name in dropped[:5]),
            )
        self.keys.refresh()
        return self.keys.seal.seal(ticket, endpoint=endpoint, principal=principal), ticket

    async def open(
        self, session_id: str, *, endpoint: str | None, principal: str
    ) -> tuple[SessionTicket, SessionRecord | None] | None:
        """The ticket of an id and the record of its session; None if it is forged, foreign, expired or ended."""
        ticket = self.keys.seal.open(session_id, endpoint=endpoint, principal=principal)
        # Another replica may seal with a new key before this one has looked at the file: an id is not refused for that.
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
            return self.wall()  # another hub may have served it a moment ago: to guess 404 would lose its client
        # The note may lag behind by so much: a session ends late rather than early.
        return (record.seen if record is not None else ticket.issued) + NOTE_SECONDS

    def is_over(self, ticket: SessionTicket) -> bool:
        """Whether a session in use reached its longest life."""
        return self.wall() >= ticket.issued + SESSION_SECONDS

    async def end(self, ticket: SessionTicket) -> None:
        """The client ended its session: no hub with this store opens its id again."""
        await self.end_named(ticket.id, until=ticket.issued + SESSION_SECONDS)

    async def end_named(self, session: bytes, *, until: float) -> None:
        """Remember until a time that a session was ended: one of an MCP client, or of a browser."""
        self.ended(session)
        await self.store.save(session, SessionRecord(until=until, seen=self.wall(), ended=True))

    async def is_ended(self, session: bytes) -> bool:
        """Whether a session was ended, here or by another hub with this store."""
        if session in self._ended:
            return True
        record = await self.store.load(session)
        return record is not None and record.ended

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
