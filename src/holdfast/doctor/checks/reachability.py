"""Checks of the network route to a server: its host name, its port, its certificate."""

from __future__ import annotations

import socket
import ssl
from typing import ClassVar

import anyio
from anyio.streams.tls import TLSAttribute, TLSStream

from holdfast.core import Evidence, NetworkFailure, TimedOut, TlsFailure, TlsFault
from holdfast.doctor.case import Case
from holdfast.doctor.checks.base import Check, Observation, found
from holdfast.doctor.diagnose import network
from holdfast.doctor.diagnose.by_evidence import route_failed
from holdfast.doctor.report import finding
from holdfast.doctor.route import Route, route_to
from holdfast.wire import evidence_of, ssl_context

__all__ = ["NameCheck", "PortCheck", "TlsCheck"]

_OVER_NETWORK = ("http", "sse")
_ANSWERED_NO = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


SUSPICIOUS_SECONDS = 1.0
"""After this long without an answer to the TLS handshake, the port may speak another protocol."""


class NameCheck(Check):
    """Whether the host in its URL has an address."""

    id: ClassVar[str] = "name"
    looks_at: ClassVar[str] = "whether the host in its URL, or of the proxy, has an address"
    needs: ClassVar[tuple[str, ...]] = ("definition",)
    transports: ClassVar[tuple[str, ...]] = _OVER_NETWORK
    finds: ClassVar[tuple[str, ...]] = ("HF-DNS-NAME", "HF-DNS-SERVER", "HF-PROXY-DOWN")

    async def look(self, case: Case) -> Observation:
        """Resolve it."""
        route = case.learned.route = route_to(case.spec.url)
        if route is None:
            text = "write it as http://host:port/path"
            return found(
                finding(
                    "HF-DEFINITION",
                    "its URL names no host",
                    text,
                    edits=case.url_edit("http://host/mcp", certain=False),
                )
            )
        try:
            with anyio.fail_after(case.left):
                case.learned.addresses = await case.tools.resolve(route.host, route.port)
        except TimeoutError:
            return found(network.no_address(case, route, exists=True))
        except socket.gaierror as exc:
            return found(network.no_address(case, route, exists=exc.errno not in _ANSWERED_NO))
        by = f" (the proxy of {route.variable})" if route.proxy else ""
        return Observation(f"{route.host} is {', '.join(case.learned.addresses[:3])}{by}")


class PortCheck(Check):
    """Whether the port accepts connections."""

    id: ClassVar[str] = "port"
    looks_at: ClassVar[str] = "whether its port, or the proxy's, accepts a connection"
    needs: ClassVar[tuple[str, ...]] = ("name",)
    transports: ClassVar[tuple[str, ...]] = _OVER_NETWORK
    finds: ClassVar[tuple[str, ...]] = ("HF-REFUSED", "HF-FILTERED", "HF-UNREACHABLE", "HF-PROXY-DOWN")

    async def look(self, case: Case) -> Observation:
        """Connect to all its addresses at the same time. One that accepts is enough."""
        route = case.learned.route
        assert route is not None  # noqa: S101 - `name` found it
        patience = case.left
        failures: list[Evidence] = []
        with anyio.move_on_after(patience):
            accepted = await _any_accepts(case.learned.addresses, route.port, failures)
            if accepted:
                return Observation(f"{accepted} port {route.port} accepts connections")
            return found(route_failed(case, route, failures[0], after=0.0))
        return found(network.filtered(case, route, round(patience, 1)))


async def _any_accepts(addresses: tuple[str, ...], port: int, failures: list[Evidence]) -> str:
    accepted: list[str] = []

    async def connect(address: str) -> None:
        try:
            stream = await anyio.connect_tcp(address, port)
        except OSError as exc:
            seen = evidence_of(exc, doing="a connection")
            if seen is not None:
                failures.append(seen)
            return
        await stream.aclose()
        accepted.append(address)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for address in addresses:
            tasks.start_soon(connect, address)
    return accepted[0] if accepted else ""


class TlsCheck(Check):
    """Whether its certificate can be trusted."""

    id: ClassVar[str] = "tls"
    looks_at: ClassVar[str] = "whether its certificate is valid, trusted and for that name"
    needs: ClassVar[tuple[str, ...]] = ("port",)
    transports: ClassVar[tuple[str, ...]] = _OVER_NETWORK
    finds: ClassVar[tuple[str, ...]] = (
        "HF-TLS-NAME",
        "HF-TLS-EXPIRED",
        "HF-TLS-EARLY",
        "HF-TLS-CLOCK",
        "HF-TLS-AUTHORITY",
        "HF-TLS-UNVERIFIED",
        "HF-TLS-PLAIN",
        "HF-TLS-HANDSHAKE",
    )

    def applies(self, case: Case) -> bool:
        """Behind a proxy, the handshake check covers TLS."""
        return super().applies(case) and case.spec.url.lower().startswith("https:") and not case.beyond_proxy

    async def look(self, case: Case) -> Observation:
        """Make a TLS handshake with the certificates that the hub trusts."""
        route = case.learned.route
        assert route is not None  # noqa: S101 - `name` found it
        patience = case.left
        seen = await _handshake(route, patience)
        if isinstance(seen, TlsFailure):
            return found(await network.unverified(case, route, seen))
        if isinstance(seen, NetworkFailure) and seen.stood:
            return found(await network.no_handshake(case, route, cut=True))
        if isinstance(seen, TimedOut):
            return found(await network.no_handshake(case, route, after=patience))
        return Observation(seen if isinstance(seen, str) else "the handshake check shows more")


async def _handshake(route: Route, patience: float) -> str | Evidence | None:
    """The TLS version or the evidence of a failure. A silent port that speaks plain HTTP ends the wait."""
    result: list[str | Evidence | None] = []

    async def shake() -> None:
        try:
            result.append(await _tls_version(route))
        except (ssl.SSLError, OSError, anyio.BrokenResourceError, anyio.EndOfStream) as exc:
            result.append(evidence_of(exc, doing="the TLS handshake", connecting=True))
        tasks.cancel_scope.cancel()

    async def suspect() -> None:
        await anyio.sleep(SUSPICIOUS_SECONDS)
        if await network.speaks_plain_http(route):
            result.append(TlsFailure(fault=TlsFault.HANDSHAKE))
            tasks.cancel_scope.cancel()

    with anyio.move_on_after(patience):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shake)
            tasks.start_soon(suspect)
    return result[0] if result else TimedOut(doing="the TLS handshake", after=patience)


async def _tls_version(route: Route) -> str:
    async with await anyio.connect_tcp(route.host, route.port) as tcp:
        stream = await TLSStream.wrap(tcp, hostname=route.host, ssl_context=ssl_context(), standard_compatible=False)
        version = stream.extra(TLSAttribute.tls_version)  # noqa: S610 - no database is near
        return f"{version}, certificate valid"
