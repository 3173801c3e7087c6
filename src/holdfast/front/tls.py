"""TLS for the hub's listener: the certificate, the key, and the authority of client certificates (SEC-16).

Changed files are read again while the hub runs. New connections get the new certificate, and old ones keep theirs. A
file that cannot be used changes nothing, and the reason is logged. Another authority ends the connections of clients
that the old one verified: they connect again, and are verified again.

With an authority, clients are asked for a certificate; a wrong one ends the handshake. One that sends none is refused
by ``AccessRules``, with a reason, except on the paths of health checks and on the control API with its own token: a
probe and a local command have no certificate.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, UsageError
from holdfast.files import FileStamp, NotPrivate, file_stamp, require_private

__all__ = ["ClientTrust", "ServerTls", "TlsFiles"]

log = logging.getLogger("holdfast.front")


class ClientTrust:
    """The trust in the client certificates of one authority file, and the connections that rest on it."""

    def __init__(self, content: bytes) -> None:
        self._content = hashlib.sha256(content).digest()
        self._ends: set[Callable[[], None]] = set()
        self.ended = False

    def is_in(self, content: bytes) -> bool:
        """Whether the file has the same content."""
        return hashlib.sha256(content).digest() == self._content

    def add(self, end: Callable[[], None]) -> Callable[[], None]:
        """Have a connection ended with the trust; returns what takes that back. It may have ended already."""
        self._ends.add(end)
        if self.ended:
            end()
        return lambda: self._ends.discard(end)

    def end(self) -> None:
        """No longer trust them."""
        self.ended = True
        for end in list(self._ends):
            end()


class ListenerContext(ssl.SSLContext):
    """What one reading of the files gave."""

    client_trust: ClientTrust | None = None


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

    def load(self, trust: ClientTrust | None = None) -> ListenerContext:
        """Return a context from the files as they are now; raises ``UsageError`` with the reason.

        It has the same ``trust`` in client certificates as before, if their authority is the same.
        """
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
                content = self.client_ca.read_bytes()
                context.load_verify_locations(cafile=self.client_ca)
            except (ssl.SSLError, OSError):
                raise UsageError(
                    f"{self.client_ca} contains no certificate of an authority", hint="give a PEM file"
                ) from None
            context.verify_mode = ssl.CERT_OPTIONAL
            if context.cert_store_stats()["crl"]:  # the file has a list of revoked certificates too
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
            context.client_trust = trust if trust is not None and trust.is_in(content) else ClientTrust(content)
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
    _distrusted: list[ClientTrust]
    _files: TlsFiles
    _read: tuple[FileStamp, ...]

    @classmethod
    def of(cls, files: TlsFiles) -> ServerTls:
        """Return a context for these files; raises ``UsageError`` if they cannot be used."""
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made._files = files
        made._read = files.stamps()
        made._current = files.load()
        made._distrusted = []
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
        old = self._current.client_trust
        try:
            self._current = self._files.load(old)
        except HoldfastError as exc:
            log.warning("%s; the last certificate stays in use", exc.message)
            return False
        if old is not None and old is not self._current.client_trust:
            self._distrusted.append(old)
        log.info("read the TLS certificate again: %s", self._files.certificate)
        return True

    def end_distrusted(self) -> None:
        """End the connections of clients whose authority was replaced; for the event loop, after ``refresh``."""
        old, self._distrusted = self._distrusted, []
        for trust in old:
            log.info("the authority of client certificates changed: clients with one must connect again")
            trust.end()


class _PassphraseNeeded(Exception):
    """The key is encrypted."""


def _no_passphrase() -> str:
    raise _PassphraseNeeded


def _check_readable(file: Path) -> None:
    if not os.access(file, os.R_OK):
        why = "permission denied" if file.exists() else "it does not exist"
        raise UsageError(f"{file} cannot be read: {why}", hint="check the path, and who may read the file")
