"""The id of a legacy session: a ticket that any hub with the key can open.

A ticket holds what a hub needs to go on with a session that it does not know: after a restart, on another replica, or
after the session was dropped from memory. It is compressed, then sealed with AES-256-GCM. The endpoint and the
principal are authenticated with it (associated data), so that an id opens nowhere else and for no other principal.

    base64url( format (1 byte) | nonce (12 bytes) | AES-256-GCM( deflate( msgpack( ticket ) ) ) )

The module has no clock, no files and no state: `session_keys` reads the keys, `session_store` keeps what changes during
a session.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.keys import NONCE_BYTES, TAG_BYTES, KeyRing

__all__ = ["IDLE_SECONDS", "LONGEST_ID", "SESSION_SECONDS", "SessionTicket", "TicketSeal", "fitted", "is_expired"]

IDLE_SECONDS: Final = 24 * 3600.0
"""A session that is not used for this long is over."""

SESSION_SECONDS: Final = 30 * 24 * 3600.0
"""No session lives longer."""

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
        return _encoded(bytes((FORMAT,)) + sealed)

    def open(self, session_id: str, *, endpoint: str | None, principal: str) -> SessionTicket | None:
        """The ticket of an id; None if no key of this ring sealed it for this endpoint and this principal."""
        raw = _decoded(session_id)
        if raw is None or raw[0] != FORMAT:
            return None
        packed = self._ring.open(raw[1:], purpose=PURPOSE, about=_bound_to(endpoint, principal))
        return _unpacked(packed) if packed is not None else None

    def __repr__(self) -> str:
        return f"<TicketSeal with {self._ring!r}>"


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


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _decoded(text: str) -> bytes | None:
    """The bytes of an id; None if it is not exactly what ``_encoded`` writes: unused bits count too."""
    if not text or len(text) > LONGEST_ID or not text.isascii():
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if _encoded(raw) == text else None
