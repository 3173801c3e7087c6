"""Certificates for the tests: one that verifies, and one for each way not to.

Everything is made for each test run; a file is written only on request.
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
from functools import cache
from ipaddress import ip_address
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Literal, TypeAlias

import httpcore2
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["CertificateKind", "Certificates", "read_authorities_once"]

CertificateKind: TypeAlias = Literal[
    "good", "expired", "not_yet_valid", "wrong_name", "other_ca", "self_signed_expired"
]

_DAY = dt.timedelta(days=1)
_NAMES = ("localhost", "127.0.0.1")


class Certificates:
    """A certificate authority that a test may trust, and servers' certificates, good and bad."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    def server_context(self, kind: CertificateKind = "good") -> ssl.SSLContext:
        """What a server for ``https://localhost`` presents."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if kind == "self_signed_expired":
            _self_signed(context, ends=dt.datetime.now(dt.UTC) - _DAY)
        else:
            self._issue(kind).configure_cert(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        """A client that trusts this authority and no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._ca.configure_trust(context)
        return context

    def write_ca(self, folder: Path) -> Path:
        """Write the authority's certificate, for ``SSL_CERT_FILE``; return where it lies."""
        path = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(path))
        return path

    def write_server(self, folder: Path) -> tuple[Path, Path, Path]:
        """Write a good certificate, its key and the authority's certificate, for a server that reads files."""
        leaf, key = self._issue("good"), folder / "server.key"
        chain = folder / "server.pem"
        leaf.private_key_pem.write_to_path(str(key))
        for number, blob in enumerate(leaf.cert_chain_pems):
            blob.write_to_path(str(chain), append=number > 0)
        return chain, key, self.write_ca(folder)

    def _issue(self, kind: CertificateKind) -> trustme.LeafCert:
        now = dt.datetime.now(dt.UTC)
        if kind == "expired":
            return self._ca.issue_cert(*_NAMES, not_before=now - 2 * _DAY, not_after=now - _DAY)
        if kind == "not_yet_valid":
            return self._ca.issue_cert(*_NAMES, not_before=now + _DAY, not_after=now + 2 * _DAY)
        if kind == "wrong_name":
            return self._ca.issue_cert("elsewhere.example")
        authority = trustme.CA() if kind == "other_ca" else self._ca
        return authority.issue_cert(*_NAMES)


def _self_signed(context: ssl.SSLContext, *, ends: dt.datetime) -> None:
    """Give a server a certificate that it signed itself, as many small installations do."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(ends - _DAY).not_valid_after(ends).add_extension(names, critical=False)
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with NamedTemporaryFile() as file:
        file.write(private + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)


def read_authorities_once(patch: pytest.MonkeyPatch) -> None:
    """Let the HTTP clients of the tests share one context: each would read the system's 140 authorities again."""
    original = httpcore2.default_ssl_context

    @cache
    def made(trust_env: bool, *_named: object) -> ssl.SSLContext:
        return original(_trust_env=trust_env)

    def context(*, _trust_env: bool = True) -> ssl.SSLContext:
        file, folder = os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", "")
        when = os.stat(file).st_mtime_ns if os.path.exists(file) else 0  # noqa: PTH110, PTH116 - it may be no path
        return made(_trust_env, file, folder, when)

    patch.setattr(httpcore2, "default_ssl_context", context)
