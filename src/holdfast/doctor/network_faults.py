"""Findings for a failed connection or TLS handshake: which step failed, and what to change.

A certificate is read over a second connection that verifies nothing and sends no credentials.

What depends on the operating system is here too: commands to paste, and the resolver.

The system's resolver cannot be interrupted, and takes half a minute if the name server does not answer. It
runs in a daemon thread, so that deadlines, and the end of the program, come first.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import anyio
import anyio.abc
from anyio.streams.tls import TLSAttribute, TLSStream
from cryptography import x509

from holdfast.core import (
    NetworkFailure,
    TimedOut,
    TlsFailure,
    TlsFault,
    command_line,
    is_loopback,
    quoted,
    quoted_name,
)
from holdfast.doctor.case import Case, Route
from holdfast.doctor.report import Finding, as_told, finding, shell

__all__ = [
    "LISTENERS",
    "SET_CLOCK",
    "cut",
    "lookup",
    "no_handshake",
    "not_judged",
    "not_reached",
    "proxied",
    "resolve",
    "show_route",
    "silent",
    "speaks_plain_http",
    "speaks_tls",
    "unverified",
]

_MAC = sys.platform == "darwin"

LISTENERS = "lsof -nP -iTCP -sTCP:LISTEN" if _MAC else "ss -ltn"
"""Lists the ports that are open on this machine."""

SET_CLOCK = "sudo sntp -sS time.apple.com" if _MAC else "sudo timedatectl set-ntp true"


def lookup(host: str) -> str:
    """The command that shows the addresses of a host."""
    return shell("dscacheutil", "-q", "host", "-a", "name", host) if _MAC else shell("getent", "hosts", "--", host)


def show_route(address: str) -> str:
    """The command that shows the route to an address."""
    return shell("route", "-n", "get", address) if _MAC else shell("ip", "route", "get", address)


async def resolve(host: str, port: int) -> tuple[str, ...]:
    """The addresses of a host, without duplicates; raises ``socket.gaierror``."""
    answer: Future[tuple[str, ...]] = Future()
    answer.set_running_or_notify_cancel()  # a lookup that began cannot be cancelled

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.set_result(tuple(dict.fromkeys(str(address[0]) for *_, address in found)))
        except OSError as exc:
            answer.set_exception(exc)
        except UnicodeError:
            answer.set_exception(socket.gaierror(socket.EAI_NONAME, "not a valid host name"))

    threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    return await asyncio.wrap_future(answer)


Unreached: TypeAlias = Literal["no name", "no name server", "refused", "no answer", "no route"]
"""Why no connection was made."""


def not_reached(case: Case, route: Route, how: Unreached, *, after: float = 0.0) -> Finding:
    """No connection was made, for a reason of the table. Behind a proxy the route leads to it, so the proxy failed."""
    here = is_loopback(route.host)
    where = "this machine" if here else route.host
    inside = "" if "." in route.host else "; a name without a dot exists only inside its own network"
    known: Mapping[Unreached, tuple[str, ...]] = {
        # what is said of a proxy; then the code, the fault, the remedy and its commands
        "no name": (
            f"its host name {route.host} does not resolve",
            "HF-DNS-NAME",
            f"there is no host named {route.host}{inside}",
            "correct the host in `url`, or connect to the network in which it exists; this command succeeds then",
            lookup(route.host),
        ),
        "no name server": (
            f"its host name {route.host} does not resolve",
            "HF-DNS-SERVER",
            f"the host name {route.host} could not be looked up: the name server does not answer",
            "check this machine's network and name server, then try again",
            "cat /etc/resolv.conf",
            case.again,
        ),
        "refused": (
            "it refuses connections",
            "HF-REFUSED",
            f"nothing listens at {route}: the connection was refused",
            f"start the server, or correct the port in `url`; this command lists the open ports on {where}",
            LISTENERS if here else shell("ssh", "--", route.host, "ss", "-ltn"),
        ),
        "no answer": (
            f"it did not answer within {after:g} s",
            "HF-FILTERED",
            f"{route} did not answer within {after:g} s: a firewall drops the packets, or the host is off",
            "connect the VPN, open the port, or correct the host in `url`; this command succeeds when the port is open",
            shell("nc", "-vz", "-w", "5", "--", route.host, str(route.port)),
        ),
        "no route": (
            "there is no route to it",
            "HF-UNREACHABLE",
            f"there is no route to {route}",
            "connect to the host's network or VPN; this command then shows the route",
            show_route((case.learned.addresses or (route.host,))[0]),
        ),
    }
    of_proxy, code, words, remedy, *commands = known[how]
    return proxied(case, route, of_proxy) if route.proxy else finding(code, words, remedy, *commands)


def proxied(case: Case, route: Route, why: str, *, code: str = "HF-PROXY-DOWN") -> Finding:
    """The proxy failed."""
    return finding(
        code,
        f"requests to {case.host} go through the proxy {route.proxy} ({route.variable}), and {why}",
        f"correct {route.variable}, or connect to this host without a proxy",
        f'export NO_PROXY="${{NO_PROXY:+$NO_PROXY,}}"{shell(case.host)}',
    )


def cut(case: Case, seen: NetworkFailure) -> Finding:
    """An open connection broke."""
    text = "the server may have crashed on the request: look at its log, then try again"
    return as_told("HF-CUT", seen, text, case.again)


def silent(case: Case, seen: TimedOut) -> Finding:
    """No answer came in time. The remedy gives more time than the settings in force do."""
    if case.was_crowded:
        return not_judged(case, seen.stderr)
    load = case.tools.settings.load
    if seen.setting == "startTimeout":
        longer = _longer(seen.after, case.spec.start_timeout, at_least=240)
        return finding(
            "HF-SILENT",
            f"no answer within {seen.after:g} s (waiting for {seen.doing})",
            "its process runs and says nothing: allow more time with `startTimeout`, or run it by hand and look at it",
            *case.by_hand(),
            detail=seen.stderr,
            edits=(case.edit("startTimeout", f"{longer}s", certain=False),),
        )
    longer = _longer(seen.after, load.attempt_timeout, at_least=60)
    limits = {"attemptTimeout": f"{longer}s"} | (
        {"totalTimeout": f"{2 * longer}s"} if longer > load.total_timeout else {}
    )
    return finding(
        "HF-SILENT",
        f"no answer within {seen.after:g} s (waiting for {seen.doing})",
        "allow more time; if that helps, set `attemptTimeout` to that time, otherwise look at the server's log",
        command_line("doctor", server=case.id, options=("--timeout", str(longer))),
        edits=case.settings("load", limits),
    )


def _longer(waited: float, in_force: float, *, at_least: int) -> int:
    """Seconds that are worth a try: many more than were waited, and than are allowed now."""
    return max(math.ceil(max(waited * 4, in_force * 2) / 10) * 10, at_least)


def not_judged(case: Case, output: str = "") -> Finding:
    """The finding for a server that did not answer in time, where doctor itself may be the reason."""
    words = (
        "it had not answered when the time was over, but doctor started many other servers meanwhile and slowed it "
        "down: this says nothing about the server"
    )
    return finding("HF-CROWDED", words, "check it alone", case.again, detail=output)


LOOK_SECONDS = 3.0
"""The longest time in seconds for the second connection; it only adds details."""

ANSWER_SECONDS = 1.5
"""The part of that time for an HTTP answer; the certificate is known without it."""

SKEW = timedelta(minutes=5)
"""A larger difference of the clocks is reported."""

_QUESTION = b"HEAD / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nUser-Agent: holdfast\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class _Certificate:
    names: tuple[str, ...]
    issuer: str
    begins: datetime
    ends: datetime
    server_time: datetime | None
    """The time in the server's Date header, if it sent one."""


async def unverified(case: Case, route: Route, seen: TlsFailure) -> Finding:
    """The finding for a handshake that failed."""
    if seen.fault is TlsFault.HANDSHAKE:
        return await no_handshake(case, route)
    if seen.fault is TlsFault.CLIENT_CERTIFICATE:
        return finding(
            "HF-TLS-HANDSHAKE",
            f"{route} demands a client certificate, and Holdfast sends none",
            "let a local proxy with that certificate connect to it, and put the proxy's address into `url`",
            _show(route),
        )
    shown = await _look(route)
    fault = _of_dates(shown) or seen.fault
    also = f"; it is also signed by {_signer(shown)}, which this machine does not trust"
    also = also if fault is not seen.fault and seen.fault is TlsFault.UNKNOWN_CA else ""
    match fault:
        case TlsFault.EXPIRED | TlsFault.NOT_YET_VALID if shown is not None and _is_our_clock(shown):
            return _clock(shown)
        case TlsFault.EXPIRED:
            when = f" on {shown.ends:%Y-%m-%d}" if shown else ""
            return finding(
                "HF-TLS-EXPIRED",
                f"the certificate of {route} expired{when}{also}",
                f"ask the operator of {route.host} to renew it; this command shows the certificate",
                _show(route),
            )
        case TlsFault.NOT_YET_VALID:
            when = f" before {shown.begins:%Y-%m-%d}" if shown else " yet"
            return finding(
                "HF-TLS-EARLY",
                f"the certificate of {route} is not valid{when}{also}",
                "ask the operator to replace it, or wait; if this machine's clock is wrong, set it",
                _show(route),
                "date",
            )
        case TlsFault.WRONG_NAME:
            return _other_name(case, route, shown)
        case TlsFault.UNKNOWN_CA:
            return finding(
                "HF-TLS-AUTHORITY",
                f"the certificate of {route} is signed by {_signer(shown)}, which this machine does not trust",
                "if you trust it, ask its operator for its certificate as a file, and export the path",
                "export SSL_CERT_FILE=/path/to/its-certificate.pem",
            )
        case _:
            return finding(
                "HF-TLS-UNVERIFIED",
                f"the certificate of {route} does not verify: {seen.detail or 'OpenSSL does not say why'}",
                f"ask the operator of {route.host} to replace it; this command shows more",
                _show(route),
            )


def _of_dates(shown: _Certificate | None) -> TlsFault | None:
    """A fault of the certificate's dates. OpenSSL reports only the first fault, and an unknown signer comes first."""
    now = datetime.now(UTC)
    if shown is None or shown.begins <= now <= shown.ends:
        return None
    return TlsFault.EXPIRED if shown.ends < now else TlsFault.NOT_YET_VALID


def _signer(shown: _Certificate | None) -> str:
    return (quoted(shown.issuer) if shown else "") or "an authority"


async def speaks_tls(route: Route) -> bool:
    """Whether a TLS handshake succeeds there, with any certificate."""
    with anyio.move_on_after(ANSWER_SECONDS):
        return await _look(route) is not None
    return False


async def speaks_plain_http(route: Route) -> bool:
    """Whether it answers plain HTTP."""
    with anyio.move_on_after(LOOK_SECONDS):
        try:
            async with await anyio.connect_tcp(route.host, route.port) as stream:
                return (await _asked(stream, route)).startswith(b"HTTP/")
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream):
            return False
    return False


def _other_name(case: Case, route: Route, shown: _Certificate | None) -> Finding:
    names = shown.names if shown else ()
    words = f"the certificate is not for {route.host}" + (
        f", but for {', '.join(quoted_name(name) for name in names[:4])}" if names else ""
    )
    usable = next((name for name in names if "*" not in name), "")
    if not usable:
        return finding("HF-TLS-NAME", words, "use a host name in `url` that the certificate contains", _show(route))
    port = urlsplit(case.spec.url).port
    there = case.url_with(netloc=f"{usable}:{port}" if port else usable)
    return finding(
        "HF-TLS-NAME", words, "if that is the right server, write this name", edits=case.url_edit(there, certain=False)
    )


def _is_our_clock(shown: _Certificate) -> bool:
    there = shown.server_time
    return there is not None and abs(there - datetime.now(UTC)) > SKEW and shown.begins <= there <= shown.ends


def _clock(shown: _Certificate) -> Finding:
    here = datetime.now(UTC)
    there = shown.server_time or here
    words = (
        f"this machine's clock says {here:%Y-%m-%d %H:%M} UTC, the server's {there:%Y-%m-%d %H:%M} UTC; "
        "by the server's, its certificate is valid"
    )
    return finding("HF-TLS-CLOCK", words, "set this machine's clock", SET_CLOCK, "date -u")


async def no_handshake(case: Case, route: Route, *, after: float | None = None, cut: bool = False) -> Finding:
    """The finding for a handshake that failed or did not end, or in which the server left."""
    if await speaks_plain_http(route):
        return finding(
            "HF-TLS-PLAIN",
            f"{route} speaks plain http, and `url` says https",
            "write http",
            edits=case.url_edit(case.url_with(scheme="http"), certain=False),
        )
    how = "was broken off by the server" if cut else "failed"
    how = how if after is None else f"did not end within {after:.3g} s"
    return finding(
        "HF-TLS-HANDSHAKE",
        f"the TLS handshake with {route} {how}",
        "check the server's TLS settings (versions, ciphers, a client certificate); this command shows the handshake",
        _show(route),
    )


def _show(route: Route) -> str:
    name = shell("openssl", "s_client", "-connect", str(route), "-servername", route.host)
    return f"{name} </dev/null"


async def _look(route: Route) -> _Certificate | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with anyio.move_on_after(LOOK_SECONDS):
        try:
            tcp = await anyio.connect_tcp(route.host, route.port)
            async with tcp:
                stream = await TLSStream.wrap(tcp, hostname=route.host, ssl_context=context, standard_compatible=False)
                encoded = stream.extra(TLSAttribute.peer_certificate_binary)  # noqa: S610 - no database is near
                return _read(encoded, _date(await _asked(stream, route)))
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, ValueError):
            return None
    return None


async def _asked(stream: anyio.abc.ByteStream, route: Route) -> bytes:
    """The beginning of its answer to a request without credentials."""
    with anyio.move_on_after(ANSWER_SECONDS):
        try:
            await stream.send(_QUESTION % route.host.encode("utf-8"))
            return await stream.receive(4096)
        except (anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError):
            return b""
    return b""


def _date(answer: bytes) -> datetime | None:
    for line in answer.split(b"\r\n"):
        if line.lower().startswith(b"date:"):
            try:
                return parsedate_to_datetime(line[5:].strip().decode("latin-1")).astimezone(UTC)
            except (ValueError, TypeError):
                return None
    return None


def _read(encoded: bytes | None, server_time: datetime | None) -> _Certificate | None:
    if encoded is None:
        return None
    certificate = x509.load_der_x509_certificate(encoded)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = (*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress)))
    except x509.ExtensionNotFound:
        names = ()
    organisation = certificate.issuer.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
    common = certificate.issuer.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    issuer = next((str(part.value) for part in (*common, *organisation)), "")
    return _Certificate(
        names=names,
        issuer=issuer,
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
        server_time=server_time,
    )
