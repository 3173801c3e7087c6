"""Clients of a hub with TLS: what their certificates allow, for how long, and what the hub says of those it refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from holdfast.files import replace_file
from holdfast.front import tls
from holdfast.front.app import create_app
from holdfast.front.tls import ServerTls, TlsFiles
from holdfast.hub import AccessRefused
from holdfast.hub.hub import Hub
from tests.clients.raw import initialize
from tests.harness.web import serving

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-16")]


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
        self.tls.end_distrusted()

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
        self.tls.end_distrusted()

    def issue_again(self) -> None:
        """Change the certificate of the hub alone."""
        made = self.ca.issue_cert("127.0.0.1")
        replace_file(self._files.key, made.private_key_pem.bytes())
        replace_file(self._files.certificate, b"".join(one.bytes() for one in made.cert_chain_pems))
        assert self.tls.refresh()
        self.tls.end_distrusted()

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
        assert (await client.ask())[0] == 0
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
