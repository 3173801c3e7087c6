"""Clients of a hub with TLS: what their certificates allow, for how long, and what the hub says of those it refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import select
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from holdfast.errors import UsageError
from holdfast.files import replace_file
from holdfast.front import tls
from holdfast.front.app import create_app
from holdfast.front.tls import ClientCertificate, Handshakes, ServerTls, TlsFiles
from holdfast.hub import AccessRefused
from holdfast.hub.hub import Hub
from tests.clients.raw import initialize
from tests.harness.waiting import all_blocked, came_true, jump
from tests.harness.web import serving

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-16")]

HOUR, DAY = 3_600.0, 86_400.0


class TlsHub:
    """A hub that is served with TLS, and clients with certificates of its authority."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.hub = Hub.from_config({"mcpServers": {}})
        self.app = create_app(self.hub, client_certificates=True)
        self.refused: list[AccessRefused] = []
        self.base = ""
        self.clients: list[TlsClient] = []
        made = self.ca.issue_cert("127.0.0.1")
        self._files = TlsFiles(certificate=folder / "cert.pem", key=folder / "key.pem", client_ca=folder / "ca.pem")
        replace_file(self._files.key, made.private_key_pem.bytes())
        replace_file(self._files.certificate, b"".join(one.bytes() for one in made.cert_chain_pems))
        replace_file(folder / "ca.pem", self.ca.cert_pem.bytes())
        self.tls = ServerTls.of(self._files)

    def trust(self, *authorities: trustme.CA) -> None:
        """Change the authorities of client certificates, and have the hub read them."""
        assert self._files.client_ca is not None
        replace_file(self._files.client_ca, b"".join(one.cert_pem.bytes() for one in authorities))
        assert self.tls.refresh()

    def revoke(self, *certificates: x509.Certificate) -> None:
        """Put a list of revoked certificates beside the authority, and have the hub read it."""
        assert self._files.client_ca is not None
        key, now = load_pem_private_key(self.ca.private_key_pem.bytes(), None), dt.datetime.now(dt.UTC)
        assert isinstance(key, EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes()).subject
        made = x509.CertificateRevocationListBuilder(issuer, now, now + dt.timedelta(days=1))
        for one in certificates:
            revoked = x509.RevokedCertificateBuilder(one.serial_number, now).build()
            made = made.add_revoked_certificate(revoked)
        crl = made.sign(key, SHA256()).public_bytes(Encoding.PEM)
        replace_file(self._files.client_ca, self.ca.cert_pem.bytes() + crl)
        assert self.tls.refresh()

    def issue_again(self) -> None:
        """Change the certificate of the hub alone."""
        made = self.ca.issue_cert("127.0.0.1")
        replace_file(self._files.key, made.private_key_pem.bytes())
        replace_file(self._files.certificate, b"".join(one.bytes() for one in made.cert_chain_pems))
        assert self.tls.refresh()

    def context(self, by: trustme.CA | None = None, until: dt.datetime | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(context)
        (by or self.ca).issue_cert("client.example", not_after=until).configure_cert(context)
        return context

    async def connect(self, context: ssl.SSLContext) -> TlsClient:
        port = urlsplit(self.base).port
        self.clients.append(TlsClient(*await asyncio.open_connection("127.0.0.1", port, ssl=context)))
        return self.clients[-1]

    async def is_refused(self, context: ssl.SSLContext) -> bool:
        """Whether the handshake ends without an answer; a client may believe that it is complete."""
        try:
            return (await (await self.connect(context)).ask())[0] == 0
        except (ConnectionError, ssl.SSLError):
            return True


class TlsClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, method: str = "POST", **headers: str) -> None:
        body = json.dumps(initialize()).encode() if method == "POST" else b""
        lines = {"Host": "127.0.0.1", "Accept": "application/json, text/event-stream", **headers}
        if method == "POST":
            lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        self.writer.write(f"{method} /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def answer(self) -> tuple[int, str]:
        """The status and the head of the next answer; 0 where the connection ended instead."""
        async with asyncio.timeout(20):
            try:
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
                length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
                await self.reader.readexactly(int(length or 0))
            except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
                return 0, ""
        return int(head.split(" ")[1]), head

    async def ask(self) -> tuple[int, str]:
        self.send()
        return await self.answer()

    async def ended(self) -> bool:
        """Wait until the hub ends the connection."""
        async with asyncio.timeout(20):
            try:
                while await self.reader.read(65536):
                    pass
            except (ConnectionError, ssl.SSLError):
                pass
        return True


@asynccontextmanager
async def tls_hub(folder: Path) -> AsyncIterator[TlsHub]:
    made = TlsHub(folder)
    made.hub.registry.journal.add_sink(
        lambda record: made.refused.append(record) if isinstance(record, AccessRefused) else None, calls=None
    )
    async with made.hub, serving(made.app, accept=True, tls=made.tls) as made.base:
        try:
            yield made
        finally:
            for client in made.clients:
                client.writer.transport.abort()


async def test_a_connection_ends_when_the_authority_of_its_certificate_is_no_longer_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LAST_ANSWER_SECONDS", 0.1)
    async with tls_hub(tmp_path) as served:
        context = served.context()
        client, idle, listening = [await served.connect(context) for _ in range(3)]
        status, head = await client.ask()
        assert status == 200
        session = head.partition("mcp-session-id: ")[2].partition("\r\n")[0]
        listening.send("GET", Mcp_Session_Id=session)
        assert (await listening.answer())[0] == 200
        served.issue_again()
        assert (await client.ask())[0] == 200, "a new certificate of the hub says nothing about its clients"
        served.trust(trustme.CA())
        assert await client.ended()
        assert await idle.ended()
        assert await listening.ended()


async def test_a_client_whose_authority_is_still_trusted_connects_again(tmp_path: Path) -> None:
    async with tls_hub(tmp_path) as served:
        context = served.context()
        client = await served.connect(context)
        assert (await client.ask())[0] == 200
        served.trust(trustme.CA(), served.ca)
        assert await client.ended(), "it is not known which authority verified it"
        assert (await (await served.connect(context)).ask())[0] == 200


async def test_a_connection_ends_with_the_certificate_of_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_hub(tmp_path) as served:
        until = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(hours=1)
        valid = served.context(until=until)
        assert (await (await served.connect(valid)).ask())[0] == 200
        monkeypatch.setattr(tls, "time", SimpleNamespace(time=lambda: until.timestamp() - 0.1))
        client = await served.connect(valid)
        assert await client.ended()


async def test_a_list_of_revoked_certificates_beside_the_authority_is_used(tmp_path: Path) -> None:
    async with tls_hub(tmp_path) as served:
        leaf = served.ca.issue_cert("client.example")
        revoked, valid = served.context(), served.context()
        leaf.configure_cert(revoked)
        client = await served.connect(revoked)
        assert (await client.ask())[0] == 200
        served.revoke(x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()))
        assert await client.ended()
        assert await served.is_refused(revoked)
        assert (await (await served.connect(valid)).ask())[0] == 200
    assert [one.reason for one in served.refused] == ["certificate revoked"]


@pytest.mark.requirement("SEC-11")
async def test_a_certificate_that_does_not_verify_is_reported_with_the_reason(tmp_path: Path) -> None:
    async with tls_hub(tmp_path) as served:
        past = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
        assert await served.is_refused(served.context(by=trustme.CA()))
        assert await served.is_refused(served.context(until=past))
    assert [(one.kind, one.reason) for one in served.refused] == [
        ("certificate", "unable to get local issuer certificate"),
        ("certificate", "certificate has expired"),
    ]
    assert "127.0.0.1" in served.refused[0].source


async def test_a_client_that_speaks_plain_http_is_told_to_use_https(tmp_path: Path) -> None:
    async with tls_hub(tmp_path) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(served.base).port)
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(20):
            said = await reader.readuntil(b"\n\r\n") + await reader.readline()
        writer.close()
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"use https://" in said
        assert (await (await served.connect(served.context())).ask())[0] == 200


# The files.


AUTHORITY = trustme.CA()
MADE = [AUTHORITY.issue_cert("127.0.0.1") for _ in range(2)]


def _key(number: int) -> bytes:
    return MADE[number].private_key_pem.bytes()


def _certificate(number: int) -> bytes:
    return b"".join(one.bytes() for one in MADE[number].cert_chain_pems)


def _encrypted() -> bytes:
    key = load_pem_private_key(_key(0), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    made = TlsFiles(certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem", client_ca=tmp_path / "ca.pem")
    replace_file(made.certificate, _certificate(0))
    replace_file(made.key, _key(0))
    replace_file(tmp_path / "ca.pem", AUTHORITY.cert_pem.bytes())
    return made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda files: files.key.unlink(), "key.pem cannot be read: it does not exist"),
        (lambda files: files.certificate.unlink(), "cert.pem cannot be read: it does not exist"),
        (lambda files: files.client_ca.unlink(), "ca.pem cannot be read: it does not exist"),
        (lambda files: files.key.chmod(0o644), "the TLS key is not private"),
        (lambda files: replace_file(files.key, _encrypted()), "has a passphrase"),
        (lambda files: replace_file(files.key, _key(1)), "does not belong to the certificate"),
        (lambda files: replace_file(files.certificate, b"none"), "are not a certificate and its key"),
        (lambda files: replace_file(files.client_ca, b"none"), "contains no certificate of an authority"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_the_reason_and_the_last_ones_stay_in_use(
    files: TlsFiles, change: Callable[[Any], None], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    served = ServerTls.of(files)
    assert served.wants_client_certificate
    assert not served.refresh(), "nothing changed"
    before = served._current
    change(files)
    with pytest.raises(UsageError, match=words):
        files.load()
    assert not served.refresh()
    assert served._current is before
    assert not served.refresh()
    assert words in caplog.text
    assert caplog.text.count("the last certificate stays in use") == 1, "it is said once for each change"


def test_a_hub_that_trusts_no_authority_asks_for_no_certificate(files: TlsFiles) -> None:
    served = ServerTls.of(TlsFiles(certificate=files.certificate, key=files.key))
    assert not served.wants_client_certificate
    assert served._current.verify_mode == ssl.CERT_NONE
    assert served._current.minimum_version == ssl.TLSVersion.TLSv1_2
    replace_file(files.key, _key(1))
    replace_file(files.certificate, _certificate(1))
    assert served.refresh()


def test_a_certificate_counts_only_with_the_authority_that_is_in_force(files: TlsFiles) -> None:
    served = ServerTls.of(files)
    before = served.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    replace_file(files.key, _key(1))
    replace_file(files.certificate, _certificate(1))
    assert served.refresh()
    assert served.trusts(before), "another certificate of the hub says nothing about its clients"
    assert files.client_ca is not None
    replace_file(files.client_ca, AUTHORITY.cert_pem.bytes() + b"\n")
    assert served.refresh()
    assert not served.trusts(before)
    assert served.trusts(served.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True))


# One certificate.


class PeerTls:
    """What TLS knows of a client."""

    def __init__(self, valid_for: float, *, asked: bool = True) -> None:
        self.context = SimpleNamespace(verify_mode=ssl.CERT_OPTIONAL if asked else ssl.CERT_NONE)
        until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=valid_for)
        self.certificate: dict[str, Any] | None = {
            "notAfter": until.strftime("%b %d %H:%M:%S %Y GMT"),
            "subject": ((("organizationName", "o"),), (("commonName", "ada"),)),
            "subjectAltName": (("DNS", "ada.example"), ("URI", "spiffe://ada"), ("IP Address", "10.0.0.1")),
        }

    def getpeercert(self) -> dict[str, Any] | None:
        return self.certificate


class Judged:
    """The certificate of a connection, and what became of the connection."""

    def __init__(self, peer: PeerTls | None, trusts: Callable[[Any], bool] | None = None) -> None:
        self.ends: list[str] = []
        loop = asyncio.get_running_loop()
        end = self.ends.append
        self.certificate = ClientCertificate(loop, peer, lambda: end("shutdown"), lambda: end("abort"), trusts)


async def test_a_certificate_counts_only_where_it_was_asked_for_and_sent() -> None:
    unsent = PeerTls(HOUR)
    unsent.certificate = None
    for peer in (None, unsent, PeerTls(HOUR, asked=False)):
        known = Judged(peer).certificate
        assert (known.verified, known.names) == (False, frozenset())
    known = Judged(PeerTls(HOUR)).certificate
    assert (known.verified, known.names) == (True, frozenset({"ada", "ada.example", "spiffe://ada"}))
    known.end()


async def test_a_certificate_that_expires_ends_its_connection_after_the_last_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [dt.datetime.now(dt.UTC).timestamp()]
    monkeypatch.setattr(tls, "time", SimpleNamespace(time=lambda: clock[0]))
    one, gone = Judged(PeerTls(10 * DAY)), Judged(PeerTls(10 * DAY))
    gone.certificate.end()
    for _ in range(9):
        clock[0] += DAY
        await jump(DAY)
    assert (one.certificate.verified, one.ends) == (True, [])
    clock[0] += DAY
    await jump(DAY)
    assert (one.certificate.verified, one.ends) == (False, ["shutdown"])
    await jump(tls.LAST_ANSWER_SECONDS)
    assert one.ends == ["shutdown", "abort"]
    assert gone.ends == []
    assert Judged(PeerTls(-1)).ends == ["shutdown"]


async def test_a_hub_whose_key_is_withdrawn_is_no_longer_trusted() -> None:
    trusted = [True]
    one, gone = (Judged(PeerTls(HOUR), lambda _: trusted[0]) for _ in range(2))
    await jump(2 * tls.LOOK_SECONDS)
    assert one.certificate.verified
    gone.certificate.end()
    trusted[0] = False
    await jump(tls.LOOK_SECONDS)
    assert (one.certificate.verified, one.ends, gone.ends) == (False, ["shutdown"], [])
    one.certificate.end()
    await jump(tls.LAST_ANSWER_SECONDS)
    assert one.ends == ["shutdown"], "its client left by itself"


async def test_a_handshake_that_ends_after_its_key_was_withdrawn_opens_nothing() -> None:
    late = Judged(PeerTls(HOUR), lambda _: False)
    assert (late.certificate.verified, late.ends) == (False, ["shutdown"])
    late.certificate.end()


# Handshakes.


def _greeting() -> bytes:
    """The first record of a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    AUTHORITY.configure_trust(context)
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1").do_handshake()
    return out.read()


def _is_readable(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


class Greeted:
    """Clients of one listening socket whose handshakes are under way."""

    def __init__(self, files: TlsFiles) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.handshakes = Handshakes(asyncio.get_running_loop(), ServerTls.of(files))

    def client(self) -> tuple[socket.socket, asyncio.Task[asyncio.Transport]]:
        client = socket.create_connection(self.listener.getsockname(), timeout=10)
        accepted, _ = self.listener.accept()
        accepted.setblocking(False)
        secured = asyncio.create_task(self.handshakes.secured(accepted, asyncio.Protocol, "peer"))
        secured.add_done_callback(lambda _: accepted.close())
        return client, secured


@pytest.mark.requirement("SEC-11")
async def test_a_part_of_a_greeting_takes_no_turn_from_a_whole_one(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "OF_A_PEER", 1)
    greeting, scene = _greeting(), Greeted(files)
    (whole, first), (part, second) = scene.client(), scene.client()
    whole.sendall(greeting)
    await came_true(lambda: _is_readable(whole))
    for start, end in ((0, 1), (1, 5), (5, 50), (50, -1)):
        part.sendall(greeting[start:end])
        await all_blocked()
        assert not first.done()
    part.sendall(greeting[-1:])
    await came_true(first.done)
    assert first.cancelled(), "the oldest of this peer gives way to a whole greeting"
    assert not second.done()
    second.cancel()
    await asyncio.wait([second])
    for one in (whole, part, scene.listener):
        one.close()


@pytest.mark.requirement("SEC-11")
async def test_a_handshake_that_is_over_leaves_its_place_to_others(files: TlsFiles) -> None:
    scene = Greeted(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    AUTHORITY.configure_trust(context)
    (good, whole), (bad, broken) = scene.client(), scene.client()

    def shake_hands() -> None:
        with context.wrap_socket(good, server_hostname="127.0.0.1") as secure:
            secure.recv(1)

    shaking = asyncio.create_task(asyncio.to_thread(shake_hands))
    (await whole).close()
    await shaking
    bad.sendall(_greeting())
    bad.shutdown(socket.SHUT_WR)
    with pytest.raises(OSError):  # noqa: PT011 - each TLS library has its own
        await broken
    assert scene.handshakes._turns._under_way == {}
    bad.close()
    scene.listener.close()


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (b"", 5),
        (b"\x16\x03\x01\x00", 5),
        (b"\x16\x03\x01\x00\x10", 21),
        (b"\x17\x03\x01\x00\x10", 5),
        (b"\x16\x03\x01\xff\xff", 5 + (1 << 14)),
    ],
)
def test_a_client_cannot_make_the_hub_wait_for_more_than_a_record(head: bytes, size: int) -> None:
    assert tls._record_size(head) == size
