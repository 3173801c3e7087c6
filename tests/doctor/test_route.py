"""What is found on the way to a server: names, ports, proxies, certificates and clocks."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import anyio
import pytest
import trustme

from tests.doctor.examination import Examination
from tests.peers.http_fault import FaultServer, closed_port, respond
from tests.peers.mcp_http import McpPeer
from tests.peers.tls import CertificateKind, Certificates

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("DOC-2", "DOC-4", "DOC-8")]


@pytest.fixture
def trusting(certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine trusts the tests' authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.write_ca(tmp_path)))


async def test_each_step_of_the_way_is_told(clinic: Examination, certificates: Certificates, trusting: None) -> None:
    async with McpPeer(ssl=certificates.server_context()) as peer:
        server = await clinic.one({"url": peer.url})
        await peer.all_closed()
    assert [(result.check, result.status) for result in server.checks] == [
        ("definition", "passed"),
        ("name", "passed"),
        ("port", "passed"),
        ("tls", "passed"),
        ("login", "passed"),
        ("handshake", "passed"),
        ("tools", "passed"),
    ]
    assert (server.health, server.tools) == ("healthy", 5)


# Names and ports


async def test_an_unknown_name_is_told_apart_from_a_name_server_that_is_silent(clinic: Examination) -> None:
    async def unknown(host: str, port: int) -> tuple[str, ...]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def out_of_order(host: str, port: int) -> tuple[str, ...]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    definition = {"url": "https://clinic.example/mcp"}
    no_name = await clinic.found(definition, resolve=unknown)
    clinic.matches("dns_name", no_name)
    no_server = await clinic.found(definition, resolve=out_of_order)
    clinic.matches("dns_server", no_server)
    short = await clinic.found({"url": "http://clinic/mcp"}, resolve=unknown)
    assert "exists only inside its own network" in short.words


async def test_a_real_name_that_cannot_exist_does_not_resolve(clinic: Examination) -> None:
    found = await clinic.found({"url": "http://clinic.invalid/mcp"}, within=3.0)
    assert found.code in ("HF-DNS-NAME", "HF-DNS-SERVER")  # which one depends on the machine's own name server


async def test_a_name_server_that_never_answers_ends_with_the_deadline(clinic: Examination) -> None:
    async def never(host: str, port: int) -> tuple[str, ...]:
        await anyio.sleep_forever()
        raise AssertionError

    found = await clinic.found({"url": "http://clinic.example/mcp"}, resolve=never, within=0.2)
    assert found.code == "HF-DNS-SERVER"


async def test_a_port_that_refuses_is_told_and_well_once_something_listens(clinic: Examination) -> None:
    with closed_port() as port:
        found = await clinic.found({"url": f"http://127.0.0.1:{port}/mcp"})
    clinic.matches("refused", found)
    async with McpPeer(port=port):
        assert (await clinic.one()).health == "healthy"


@contextmanager
def filtered_port() -> Iterator[int]:
    """A port that says neither yes nor no: its queue is full, so that the kernel drops what comes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = []
        try:
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                fillers.append(filler)
                filler.connect_ex(("127.0.0.1", port))
            yield port
        finally:
            for filler in fillers:
                filler.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses")
async def test_a_filtered_port_is_told_apart_from_one_that_refuses(clinic: Examination) -> None:
    with filtered_port() as port:
        found = await clinic.found({"url": f"http://127.0.0.1:{port}/mcp"}, within=2.0)
    clinic.matches("filtered", found)


async def test_a_host_without_a_route_is_told_apart_from_both(clinic: Examination) -> None:
    found = await clinic.found({"url": "http://255.255.255.255:9/mcp"})
    clinic.matches("unreachable", found)


# Proxies


async def test_a_proxy_that_is_down_is_named_and_going_round_it_is_the_cure(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with McpPeer() as peer:

        async def here(host: str, port: int) -> tuple[str, ...]:
            return ("127.0.0.1",)

        with closed_port() as port:
            monkeypatch.setenv("HTTP_PROXY", f"http://me:secret-of-proxy@127.0.0.1:{port}")
            found = await clinic.found({"url": f"http://clinic.example:{peer.port}/mcp"}, resolve=here)
        assert "secret-of-proxy" not in found.words
        clinic.matches("proxy_down", found)
        clinic.carry_out(found)
        after = await clinic.one(resolve=here)
    assert all(one.code.startswith("HF-PROXY") is False for one in after.findings)


@pytest.mark.parametrize(
    "written", ["http://[", "http://proxy.example:99999", "http://:3128", "socks5://proxy.example"]
)
async def test_a_proxy_that_cannot_be_used_is_told_as_the_hub_tells_it(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    async with McpPeer() as peer:

        async def here(host: str, port: int) -> tuple[str, ...]:
            return ("127.0.0.1",)

        monkeypatch.setenv("HTTP_PROXY", written)
        found = await clinic.found({"url": f"http://clinic.example:{peer.port}/mcp"}, resolve=here)
    assert found.code == "HF-DEFINITION"
    assert "proxy" in found.words


@pytest.mark.parametrize(("status", "code"), [(407, "HF-PROXY-LOGIN"), (502, "HF-PROXY-REFUSED")])
async def test_what_a_proxy_answers_is_not_taken_for_the_servers_answer(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    async with FaultServer(respond(status, "no way")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.origin)
        found = await clinic.found({"url": "http://clinic.example/mcp"})
        await proxy.all_closed()
    assert found.code == code
    clinic.matches(f"proxy_{status}", found)


@pytest.mark.parametrize(("status", "code"), [(407, "HF-PROXY-LOGIN"), (403, "HF-PROXY-REFUSED")])
async def test_a_proxy_that_does_not_let_a_tunnel_through_is_told_as_the_proxy(
    clinic: Examination, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    async with FaultServer(respond(status, "no way")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.origin)
        found = await clinic.found({"url": "https://clinic.example/mcp"})
        assert [request.method for request in proxy.requests] == ["CONNECT"]
    assert found.code == code
    clinic.matches(f"proxy_tunnel_{status}", found)


# TLS


async def test_a_certificate_that_does_not_verify_for_another_reason_is_told_with_it(
    clinic: Examination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA(path_length=0)  # it may sign servers, and no other authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA(parent_cert=authority).issue_cert("localhost").configure_cert(context)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with McpPeer(ssl=context) as peer:
        found = await clinic.found({"url": peer.url})
    assert found.code == "HF-TLS-UNVERIFIED"
    clinic.matches("tls_unverified", found)


async def test_a_server_that_leaves_during_the_handshake_is_told_as_that(clinic: Examination) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.close()

    async with await asyncio.start_server(leave, "127.0.0.1", 0) as server:
        found = await clinic.found({"url": f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"})
    assert found.code == "HF-TLS-HANDSHAKE"
    assert "broken off by the server" in found.words


@pytest.mark.parametrize("kind", ["expired", "not_yet_valid", "wrong_name", "other_ca", "self_signed_expired"])
async def test_each_fault_of_a_certificate_is_told_apart(
    clinic: Examination, certificates: Certificates, trusting: None, kind: CertificateKind
) -> None:
    async with McpPeer(ssl=certificates.server_context(kind)) as peer:
        found = await clinic.found({"url": peer.url})
    clinic.matches(f"tls_{kind}", found)


async def test_trusting_the_authority_is_the_cure_for_an_unknown_one(
    clinic: Examination, certificates: Certificates, tmp_path: Path
) -> None:
    async with McpPeer(ssl=certificates.server_context()) as peer:
        found = await clinic.found({"url": peer.url})
        assert found.code == "HF-TLS-AUTHORITY"
        clinic.carry_out(found, SSL_CERT_FILE=str(certificates.write_ca(tmp_path)))
        assert (await clinic.one()).health == "healthy"


async def test_a_clock_that_is_wrong_is_told_apart_from_a_certificate_that_is(
    clinic: Examination, certificates: Certificates, trusting: None
) -> None:
    there = format_datetime(datetime.now(UTC) + timedelta(days=1, hours=12), usegmt=True)
    context = certificates.server_context("not_yet_valid")
    async with FaultServer(respond(200, "", {"date": there}), ssl=context) as server:
        found = await clinic.found({"url": f"{server.origin}/mcp"})
    clinic.matches("tls_clock", found)


async def test_https_where_http_is_meant(clinic: Examination) -> None:
    async with McpPeer() as peer:
        found = await clinic.found({"url": peer.url.replace("http:", "https:")})
        clinic.matches("https_for_http", found)
        clinic.carry_out(found)
        assert (await clinic.one()).health == "healthy"


async def test_http_where_https_is_meant(clinic: Examination, certificates: Certificates, trusting: None) -> None:
    async with McpPeer(ssl=certificates.server_context()) as peer:
        found = await clinic.found({"url": peer.url.replace("https:", "http:")})
        clinic.matches("http_for_https", found)
        clinic.carry_out(found)
        assert (await clinic.one()).health == "healthy"


async def test_a_port_that_speaks_neither_tls_nor_http(clinic: Examination) -> None:
    async with _rude() as port:
        found = await clinic.found({"url": f"https://127.0.0.1:{port}/mcp"})
    assert found.code == "HF-TLS-HANDSHAKE"
    clinic.matches("tls_handshake", found)


@asynccontextmanager
async def _rude() -> AsyncIterator[int]:
    """Answers everything with words that are no protocol."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"220 go away\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
