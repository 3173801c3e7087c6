"""TLS of the listener: its files, client certificates, and handshakes that take turns (SEC-11, SEC-16).

**The files of TLS** (``ServerTls``): the certificate, the key, and the authority of client certificates. Changed files
are read again while the hub runs. New connections get the new certificate, and old ones keep theirs. A file that cannot
be used changes nothing, and the reason is logged. Another authority ends the connections of clients that the old one
verified, because it is not known which of its certificates verified them: they connect again, and are verified again.

With an authority, clients are asked for a certificate; a wrong one ends the handshake. One that sends none is refused
by ``AccessRules``, with a reason, except on the paths of health checks and on the control API with its own token: a
probe and a local command have no certificate.

**Handshakes** (``Handshakes``) take turns (``HandshakeTurns``): each costs milliseconds of CPU, and its client is not
known yet. A few begin in each turn of the event loop, so requests of known clients are served between them. One peer
has a bound on those that are under way: else it could hold many back, and let all of them go on in the same moment. A
new one of that peer ends the oldest: a handshake takes a moment, and one that does not go on delays no other. Peers
take turns, so a flood from one does not delay the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.errors import HoldfastError, UsageError
from holdfast.files import FileStamp, NotPrivate, file_stamp, require_private

__all__ = ["ClientCertificate", "HandshakeTurns", "Handshakes", "ServerTls", "TlsFiles"]

log = logging.getLogger("holdfast.front")

HANDSHAKE_SECONDS: Final = 10.0
"""How long a TLS handshake may take."""

LAST_ANSWER_SECONDS: Final = 60.0
"""How long the request under way may take, and a stream stay open, once the peer's certificate does not count."""

LOOK_SECONDS: Final = 1.0
"""How often it is asked whether a certificate still counts. A timer until it expires would miss a clock that is set."""

_WORDS: Final = b"this port serves TLS: use https:// in the URL\n"
_NO_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_WORDS), _WORDS)
)
_RECORD_HEAD, _HANDSHAKE, _LARGEST_RECORD = 5, 22, 1 << 14

_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"DELE", b"PUT ", b"OPTI", b"PATC")


class ListenerContext(ssl.SSLContext):
    """What one reading of the files gave."""

    authority: bytes = b""
    """The digest of the file with the authority of client certificates; empty if clients need none."""


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """The files that TLS is made from, as PEM."""

    certificate: Path
    """The certificate, and those between it and its authority."""
    key: Path
    client_ca: Path | None = None

    def stamps(self) -> tuple[FileStamp, ...]:
        """Return what changes with the files."""
        return tuple(file_stamp(file) for file in (self.certificate, self.key, self.client_ca) if file is not None)

    def load(self) -> ListenerContext:
        """Return a context from the files as they are now; raises ``UsageError`` with the reason."""
        for file in (self.certificate, self.key, self.client_ca):
            if file is not None:
                _check_readable(file)
        try:
            require_private(self.key)
        except NotPrivate as exc:
            raise UsageError(f"the TLS key is not private: {exc}", hint=f"run: {exc.command}") from None
        context = ListenerContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load_certificate(context)
        if self.client_ca is not None:
            try:
                context.authority = hashlib.sha256(self.client_ca.read_bytes()).digest()
                context.load_verify_locations(cafile=self.client_ca)
            except (ssl.SSLError, OSError):
                raise UsageError(
                    f"{self.client_ca} contains no certificate of an authority", hint="give a PEM file"
                ) from None
            context.verify_mode = ssl.CERT_OPTIONAL
            if context.cert_store_stats()["crl"]:  # the file has a list of revoked certificates too
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        try:
            # A key with a passphrase would ask for it on the terminal, also while the hub runs.
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except _PassphraseNeeded:
            raise UsageError(
                f"the TLS key {self.key} has a passphrase", hint="give a key without one, in a file of mode 600"
            ) from None
        except (ssl.SSLError, OSError) as exc:
            reason = getattr(exc, "reason", None) or ""
            if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
                what = f"the TLS key {self.key} does not belong to the certificate {self.certificate}"
            else:
                what = f"{self.certificate} and {self.key} are not a certificate and its key"
            raise UsageError(what, hint="give both as PEM: --tls-cert FILE --tls-key FILE") from None


class ServerTls(ssl.SSLContext):
    """A context for a listener that can be exchanged: a new connection uses the files as they were read last."""

    _current: ListenerContext
    _files: TlsFiles
    _read: tuple[FileStamp, ...]

    @classmethod
    def of(cls, files: TlsFiles) -> ServerTls:
        """Return a context for these files; raises ``UsageError`` if they cannot be used."""
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made._files = files
        made._read = files.stamps()
        made._current = files.load()
        return made

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Begin a connection; asyncio and uvloop call it for each one."""
        return self._current.wrap_bio(*args, **kwargs)

    @property
    def wants_client_certificate(self) -> bool:
        """Whether clients need a certificate."""
        return self._files.client_ca is not None

    def refresh(self) -> bool:
        """Read the files again if they changed; returns whether new connections get another certificate."""
        stamps = self._files.stamps()
        if stamps == self._read:
            return False
        self._read = stamps
        old = self._current.authority
        try:
            self._current = self._files.load()
        except HoldfastError as exc:
            log.warning("%s; the last certificate stays in use", exc.message)
            return False
        log.info("read the TLS certificate again: %s", self._files.certificate)
        if old != self._current.authority:
            log.info("the authority of client certificates changed: clients with one must connect again")
        return True

    def trusts(self, connection: ssl.SSLObject) -> bool:
        """Whether the certificate of a client was verified by the authority that is in force."""
        return getattr(connection.context, "authority", b"") == self._current.authority


class _PassphraseNeeded(Exception):
    """The key is encrypted."""


def _no_passphrase() -> str:
    raise _PassphraseNeeded


def _check_readable(file: Path) -> None:
    if not os.access(file, os.R_OK):
        why = "permission denied" if file.exists() else "it does not exist"
        raise UsageError(f"{file} cannot be read: {why}", hint="check the path, and who may read the file")


# One connection: its certificate, its handshake, and whose turn it is.


class ClientCertificate:
    """The certificate of one connection that TLS verified, if there is one.

    When it does not count any more, because it expired or its authority is not trusted, ``shutdown`` is called: no
    further request, the one under way is answered. ``abort`` follows a while later. ``trusts`` tells whether its
    authority is in force: of a client's, the file with it (``ServerTls``); of another hub's, the session key that it
    stands on, which is replaced while hubs work (FLEET-5).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tls: Any,
        shutdown: Callable[[], None],
        abort: Callable[[], None],
        trusts: Callable[[ssl.SSLObject], bool] | None = None,
    ) -> None:
        self._loop = loop
        self._shutdown = shutdown
        self._abort = abort
        self._timer: asyncio.TimerHandle | None = None
        """Until the next look; at last until the connection is aborted."""
        asked = tls is not None and tls.context.verify_mode != ssl.CERT_NONE
        found: Mapping[str, Any] = (tls.getpeercert() or {}) if asked else {}
        self.names = _names_in(found)
        self.verified = bool(found)
        if found:
            self._look(ssl.cert_time_to_seconds(found["notAfter"]), tls, trusts)

    def _look(self, until: float, tls: ssl.SSLObject, trusts: Callable[[ssl.SSLObject], bool] | None) -> None:
        if time.time() < until and (trusts is None or trusts(tls)):
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look, until, tls, trusts)
            return
        self.verified = False
        self._timer = self._loop.call_later(LAST_ANSWER_SECONDS, self._abort)
        self._shutdown()

    def end(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()

    def __repr__(self) -> str:
        return f"<ClientCertificate {sorted(self.names)} {'verified' if self.verified else 'does not count'}>"


def _names_in(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The common name, and the DNS names and URIs of the subject."""
    subject = [value for parts in certificate.get("subject", ()) for name, value in parts if name == "commonName"]
    other = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    return frozenset((*subject, *other))


class Handshakes:
    """The TLS handshakes of one listening socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext) -> None:
        self._loop = loop
        self._tls = tls
        self._turns = HandshakeTurns(loop)

    async def secured(
        self, connection: socket.socket, make: Callable[[], asyncio.Protocol], peer: str
    ) -> asyncio.Transport:
        """The transport of a connection with TLS. Its handshake waits for the whole greeting, and for a turn."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await self._readable(connection)
            if connection.recv(4, socket.MSG_PEEK) in _METHODS:  # plain HTTP: it gets an answer that it can read
                connection.recv(1 << 16)  # unread bytes would make the close a reset, and the answer is lost with it
                connection.send(_NO_TLS)
                raise ConnectionAbortedError
            await self._greeted(connection)
            turn = await self._turns.begin(peer, task.cancel)
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                make, connection, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
            return transport
        finally:
            self._turns.end(peer, turn)

    async def _greeted(self, connection: socket.socket) -> None:
        """Wait until the first record is here. A client that sends a part of it and no more takes no turn."""
        for _ in range(2):  # its length, then all of it
            # It is looked at, and stays for TLS. The system wakes us only when so much is there: a client that sends
            # byte by byte costs no turn of the event loop for each one.
            wanted = _record_size(connection.recv(_RECORD_HEAD, socket.MSG_PEEK))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            await self._readable(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    async def _readable(self, connection: socket.socket) -> None:
        came = asyncio.Event()
        self._loop.add_reader(connection, came.set)
        try:
            await came.wait()
        finally:
            self._loop.remove_reader(connection)


def _record_size(head: bytes) -> int:
    """The size of the TLS record that begins so; that of its head, where this is not all of it or no such record."""
    if len(head) < _RECORD_HEAD or head[0] != _HANDSHAKE:
        return _RECORD_HEAD
    return _RECORD_HEAD + min(int.from_bytes(head[3:5], "big"), _LARGEST_RECORD)


IN_A_TURN: Final = 2
"""How many begin in one turn of the event loop: a signature with an RSA key of 4096 bits takes 5 ms."""

OF_A_PEER: Final = 256
"""How many of one peer may be under way. A proxy has all its clients at one address, and some are slow."""


class HandshakeTurns:
    """Whose turn it is to begin a handshake."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], Callable[[], object]]]] = {}
        """By peer, with what ends each one; the peer whose turn is next comes first."""
        self._under_way: dict[str, dict[asyncio.Future[None], Callable[[], object]]] = {}
        """By peer what ends each one, the oldest first."""
        self._scheduled = False

    async def begin(self, peer: str, give_up: Callable[[], object]) -> asyncio.Future[None]:
        """Wait for a turn; ``end`` must follow with the result. ``give_up`` ends the handshake, if others need it."""
        turn = self._loop.create_future()
        self._waiting.setdefault(peer, deque()).append((turn, give_up))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._next_turn)
        try:
            await turn
        except asyncio.CancelledError:
            self.end(peer, turn)  # it may have got its turn in the moment in which it was given up
            raise
        return turn

    def end(self, peer: str, turn: asyncio.Future[None]) -> None:
        """A handshake is over. Idempotent."""
        under_way = self._under_way.get(peer)
        if under_way is not None and under_way.pop(turn, None) is not None and not under_way:
            del self._under_way[peer]

    def _next_turn(self) -> None:
        left = IN_A_TURN
        while left and self._waiting:
            peer = next(iter(self._waiting))
            waiting = self._waiting.pop(peer)
            turn, give_up = waiting.popleft()
            if waiting:
                self._waiting[peer] = waiting  # the others come first the next time
            if turn.done():
                continue  # it was given up: a task that is cancelled cancels the future that it waits for
            under_way = self._under_way.setdefault(peer, {})
            if len(under_way) >= OF_A_PEER:
                under_way.pop(next(iter(under_way)))()
            under_way[turn] = give_up
            turn.set_result(None)
            left -= 1
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            self._loop.call_soon(self._next_turn)
