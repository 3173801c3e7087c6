"""TLS for the hub's listener: the certificate, the key, and the authority of client certificates (SEC-16).

Changed files are read again while the hub runs. New connections get the new certificate, and old ones keep theirs. A
file that cannot be used changes nothing, and the reason is logged.

With an authority, clients are asked for a certificate; a wrong one ends the handshake. One that sends none is refused
by ``AccessRules``, with a reason, except on the paths of health checks and on the control API with its own token: a
probe and a local command have no certificate.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, UsageError
from holdfast.files import FileStamp, NotPrivate, file_stamp, require_private

__all__ = ["ServerTls", "TlsFiles"]

log = logging.getLogger("holdfast.front")


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

    def load(self) -> ssl.SSLContext:
        """Return a context from the files as they are now; raises ``UsageError`` with the reason."""
        for file in (self.certificate, self.key, self.client_ca):
            if file is not None:
                _check_readable(file)
        try:
            require_private(self.key)
        except NotPrivate as exc:
            raise UsageError(f"the TLS key is not private: {exc}", hint=f"run: {exc.command}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load_certificate(context)
        if self.client_ca is not None:
            try:
                context.load_verify_locations(cafile=self.client_ca)
            except (ssl.SSLError, OSError):
                raise UsageError(
                    f"{self.client_ca} contains no certificate of an authority", hint="give a PEM file"
                ) from None
            context.verify_mode = ssl.CERT_OPTIONAL
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
            if reason == "KEY_VALUES_MISMATCH":
                what = f"the TLS key {self.key} does not belong to the certificate {self.certificate}"
            else:
                what = f"{self.certificate} and {self.key} are not a certificate and its key"
            raise UsageError(what, hint="give both as PEM: --tls-cert FILE --tls-key FILE") from None


class ServerTls(ssl.SSLContext):
    """A context for a listener that can be exchanged: a new connection uses the files as they were read last."""

    _current: ssl.SSLContext
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
        try:
            self._current = self._files.load()
        except HoldfastError as exc:
            log.warning("%s; the last certificate stays in use", exc.message)
            return False
        log.info("read the TLS certificate again: %s", self._files.certificate)
        return True


class _PassphraseNeeded(Exception):
    """The key is encrypted."""


def _no_passphrase() -> str:
    raise _PassphraseNeeded


def _check_readable(file: Path) -> None:
    if not os.access(file, os.R_OK):
        why = "permission denied" if file.exists() else "it does not exist"
        raise UsageError(f"{file} cannot be read: {why}", hint="check the path, and who may read the file")
