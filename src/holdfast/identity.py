"""Who a hub is for other hubs of its fleet: certificates that follow from the session key, and nothing to hand out.

Every hub with a session key can make the fleet's *authority*: an Ed25519 key that is derived from the session key. The
authority's certificate is the same everywhere, byte by byte, because the signature of Ed25519 has no randomness. At its
start each hub makes a key of its own and a certificate for it, signed by the authority, with the name of the hub in it.
Two hubs that meet prove to each other with TLS 1.3 that both have the session key. No file is shared for that.

What can happen:
- Keys are replaced. Every key in force has its authority, and all of them are trusted; the first one signs. The
  contexts here follow the ring: each new connection stands on the keys of that moment. Connections of a removed key are
  ended by those who own them: ``peer_authority`` says on which key one stands, ``authorities`` which count.
- Clocks differ. A certificate is made at each start and its key ends with the process, so its times say nothing: it is
  valid always.
- A hub is dialed at an address that another one has by now. TLS proves the fleet, not the hub: who asks for one hub
  compares ``peer_name``.

What must never happen: a private key in a file that others read. ``ssl`` reads keys from files alone, so the key goes
through a file in memory (Linux), or through one that only this user can read, and that is gone a moment later.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.keys import KeyRing

__all__ = ["FleetIdentity", "peer_authority", "peer_name"]

PURPOSE: Final = "fleet authority"
_NAME_PREFIX: Final = "holdfast:"
"""A name is a URI in the certificate: replica ids are no host names, and may be longer than a common name."""
_FROM: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_UNTIL: Final = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
"""RFC 5280: the time of a certificate without a good end."""


class FleetIdentity:
    """The name of this hub, and the TLS contexts that prove it."""

    def __init__(self, keys: Callable[[], KeyRing], name: str) -> None:
        self._keys = keys
        self.name = name
        self._own = Ed25519PrivateKey.generate()
        self._contexts_with = lru_cache(maxsize=1)(self._made_with)

    def client(self) -> ssl.SSLContext:
        """For connections to other hubs. It compares no host name: see ``peer_name``."""
        return _FollowingContext.of(ssl.PROTOCOL_TLS_CLIENT, lambda: self._contexts().client)

    def server(self) -> ssl.SSLContext:
        """For connections from other hubs; one without a certificate of the fleet comes to no request."""
        return _FollowingContext.of(ssl.PROTOCOL_TLS_SERVER, lambda: self._contexts().server)

    def authorities(self) -> tuple[str, ...]:
        """The names of the authorities in force, the first one signs: compare ``peer_authority``."""
        return self._contexts().authorities

    def trusts(self, connection: ssl.SSLObject) -> bool:
        """Whether the key on which a connection stands is still in force."""
        return peer_authority(connection) in self.authorities()

    def _contexts(self) -> _Contexts:
        return self._contexts_with(self._keys())

    def _made_with(self, ring: KeyRing) -> _Contexts:
        authorities = [Ed25519PrivateKey.from_private_bytes(seed) for seed in ring.derived(PURPOSE)]
        chain = _pem(_leaf(self._own.public_key(), self.name, authorities[0])) + self._own.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        trusted = "".join(_pem(_certificate(one)).decode() for one in authorities)
        client, server = (_context(side, chain, trusted) for side in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER))
        return _Contexts(client, server, tuple(_authority_name(one.public_key()) for one in authorities))

    def __repr__(self) -> str:
        return f"<FleetIdentity {self.name!r} with {self._keys()!r}>"


class _Contexts(NamedTuple):
    """What follows from one ring of keys."""

    client: ssl.SSLContext
    server: ssl.SSLContext
    authorities: tuple[str, ...]


class _FollowingContext(ssl.SSLContext):
    """A context whose new connections stand on the keys in force at that moment."""

    _current: Callable[[], ssl.SSLContext]

    @classmethod
    def of(cls, side: int, current: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        made = cls(side)
        made.check_hostname = False  # asyncio asks here whether a host name is needed
        made.verify_mode = ssl.CERT_REQUIRED
        made._current = current
        return made

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Begin a connection; asyncio calls it for each one."""
        return self._current().wrap_bio(*args, **kwargs)


def peer_name(ssl_object: ssl.SSLObject | None) -> str:
    """The name in the certificate that the other side proved; empty if there is none."""
    for kind, value in _peer(ssl_object).get("subjectAltName", ()):
        if kind == "URI" and value.startswith(_NAME_PREFIX):
            return bytes.fromhex(value.removeprefix(_NAME_PREFIX)).decode()
    return ""


def peer_authority(ssl_object: ssl.SSLObject | None) -> str:
    """The authority that signed the certificate of the other side; empty if there is none."""
    names = [pair for group in _peer(ssl_object).get("issuer", ()) for pair in group]
    return next((value for kind, value in names if kind == "commonName"), "")


def _peer(ssl_object: ssl.SSLObject | None) -> dict[str, Any]:
    return dict(ssl_object.getpeercert() or {}) if ssl_object is not None else {}


def _authority_name(key: Ed25519PublicKey) -> str:
    """Tells the authorities of two keys apart, and says nothing about the keys."""
    public = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return f"holdfast fleet {hashlib.blake2s(public, digest_size=8).hexdigest()}"


def _certificate(authority: Ed25519PrivateKey) -> x509.Certificate:
    """The certificate of an authority, equal on every hub: all that varies follows from its key."""
    public = authority.public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _authority_name(public))])
    return (
        _certificate_for(public, name, name, number=1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority, None)
    )


def _leaf(own: Ed25519PublicKey, name: str, authority: Ed25519PrivateKey) -> x509.Certificate:
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _authority_name(authority.public_key()))])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        _certificate_for(own, x509.Name([]), issuer, number=x509.random_serial_number())
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(_NAME_PREFIX + name.encode().hex())]),
            critical=True,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(signed_by, critical=False)
        .sign(authority, None)
    )


def _certificate_for(
    key: Ed25519PublicKey, subject: x509.Name, issuer: x509.Name, *, number: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(number)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _context(side: int, chain: bytes, trusted: str) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the name is that of a hub: see ``peer_name``
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted)
    with _private_file(chain) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """A path from which this process can read the content, and no one else."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("holdfast", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:  # mode 0600
        file.write(content)
        file.flush()
        yield file.name
