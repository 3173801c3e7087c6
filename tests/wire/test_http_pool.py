"""Which connections are kept and for how long, how a request is written, and what a failure on the way shows."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest

from holdfast.core import (
    Evidence,
    HttpStatus,
    NetworkFailure,
    NetworkFault,
    NotMcp,
    NotMcpFault,
    TimedOut,
    TlsFailure,
    TlsFault,
)
from holdfast.wire.http import pool as dialing
from holdfast.wire.http.answer_parser import BadEncoding, BrokenHttp, Disconnected, NotHttp
from holdfast.wire.http.connection import IDLE_SECONDS, PooledConnection
from holdfast.wire.http.pool import (
    CLOSING_SECONDS,
    IDLE_CONNECTIONS,
    ConnectFailed,
    ConnectTimedOut,
    HttpOrigin,
    Pool,
    Proxy,
    ProxyFailed,
    causes,
    evidence_of,
    unix_peer_uid,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("host", "port", "tls", "authority"),
    [
        ("a.example", 80, False, "a.example"),
        ("a.example", 443, True, "a.example"),
        ("a.example", 443, False, "a.example:443"),
        ("a.example", 80, True, "a.example:80"),
        ("a.example", 81, False, "a.example:81"),
        ("a.example", 444, True, "a.example:444"),
        ("::1", 80, False, "[::1]"),
        ("::1", 8080, False, "[::1]:8080"),
    ],
)
def test_the_host_header_names_the_port_unless_it_is_that_of_the_scheme(
    host: str, port: int, tls: bool, authority: str
) -> None:
    assert HttpOrigin(host, port, tls).authority == authority


# How a request is written.


def pool(*, tls: bool = False, proxy: Proxy | None = None) -> Pool:
    return Pool(HttpOrigin("a.example", 8080, tls), proxy=proxy)


async def test_a_head_has_the_host_the_headers_and_a_length_where_there_may_be_a_body() -> None:
    here = pool()
    first = b"POST /mcp HTTP/1.1\r\nhost: a.example:8080\r\nx: y\r\n"
    assert here.head("POST", "/mcp", {"x": "y"}, b"four") == first + b"content-length: 4\r\n\r\n"
    assert here.head("POST", "/mcp", {"x": "y"}, None) == first + b"content-length: 0\r\n\r\n"
    assert here.head("GET", "/mcp", {"x": "y"}, None) == first.replace(b"POST", b"GET") + b"\r\n"
    assert here.head("PUT", "/", {}, b"") == b"PUT / HTTP/1.1\r\nhost: a.example:8080\r\ncontent-length: 0\r\n\r\n"
    assert here.head("GET", "/", {"host": "other"}, None) == b"GET / HTTP/1.1\r\nhost: other\r\n\r\n"


async def test_only_a_plain_request_through_a_proxy_names_the_whole_address_and_shows_who_asks() -> None:
    proxy = Proxy("p.example", 3128, authorization="Basic x")
    assert pool(proxy=proxy).head("GET", "/a", {}, None) == (
        b"GET http://a.example:8080/a HTTP/1.1\r\nhost: a.example:8080\r\nproxy-authorization: Basic x\r\n\r\n"
    )
    assert pool(proxy=Proxy("p.example", 3128)).head("GET", "/a", {}, None) == (
        b"GET http://a.example:8080/a HTTP/1.1\r\nhost: a.example:8080\r\n\r\n"
    )
    assert pool(proxy=proxy, tls=True).head("GET", "/a", {}, None) == b"GET /a HTTP/1.1\r\nhost: a.example:8080\r\n\r\n"


# Which connections are kept.


class Kept:
    """In place of a connection."""

    def __init__(self, *, usable: bool = True) -> None:
        self.is_usable = usable
        self.closed = False
        self.idle_since = -1.0
        self.is_kept = False

    def usable(self, now: float) -> bool:
        return self.is_usable

    def abort(self) -> None:
        self.closed = True


class Clock:
    """In place of the event loop: a time, and one timer."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        timer = (when, call)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def run(self) -> None:
        """The timer comes."""
        ((self.now, call),) = self.timers
        self.timers.clear()
        call()


def clocked() -> tuple[Any, Clock]:
    here: Any = pool()
    here._loop = clock = Clock()
    return here, clock


def released(here: Any, so_many: int = 1) -> list[Kept]:
    made = [Kept() for _ in range(so_many)]
    here._all.update(made)
    for one in made:
        here.release(one)
    return made


async def test_the_connection_that_was_used_last_is_used_next_and_a_useless_one_is_closed() -> None:
    here, clock = clocked()
    first, second, third = released(here, 3)
    assert (first.idle_since, first.is_kept) == (clock.now, True)
    third.is_usable = False
    assert here.free() is second
    assert here.free() is first
    assert here.free() is None
    assert (first.closed, second.closed, third.closed) == (False, False, True)
    assert here._all == {first, second}


async def test_so_many_unused_connections_are_kept_and_the_oldest_gives_way() -> None:
    here, _ = clocked()
    kept = released(here, IDLE_CONNECTIONS)
    assert not any(one.closed for one in kept)
    released(here)
    assert [one.closed for one in kept] == [True] + [False] * (IDLE_CONNECTIONS - 1)


async def test_an_idle_connection_is_closed_by_one_timer_which_ends_with_the_last_one() -> None:
    here, clock = clocked()
    (old,) = released(here)
    assert [when for when, _ in clock.timers] == [108.0]
    clock.now = 104.1
    (young,) = released(here)
    clock.run()
    assert (clock.now, old.closed, young.closed) == (108.0, True, False)
    assert [when for when, _ in clock.timers] == [116.0]
    clock.run()
    assert young.closed
    assert (clock.timers, here._sweeper, here._all) == ([], None, set())
    (last,) = released(here)
    assert len(clock.timers) == 1, "it begins again"
    await here.aclose()
    assert (last.closed, clock.timers) == (True, [])


async def test_a_connection_is_idle_for_its_whole_time_and_not_longer() -> None:
    here, clock = clocked()
    (exactly,) = released(here)
    clock.now += 0.5
    (shorter,) = released(here)
    clock.now = 100.0 + IDLE_SECONDS
    here._sweep()
    assert (exactly.closed, shorter.closed) == (True, False)


async def test_one_whose_answer_has_not_ended_is_waited_for_as_long() -> None:
    here, clock = clocked()
    slow, over, gone = Kept(), Kept(), Kept()
    here._all.update((slow, over, gone))
    here.await_end(slow)
    assert [when for when, _ in clock.timers] == [108.0]
    here.await_end(gone)
    gone.closed = True
    clock.now = 104.5
    here.await_end(over)
    here._sweep()
    assert (slow.closed, over.closed, here._all) == (True, False, {over})
    here.release(over)
    assert here._ending == {}
    assert here.free() is over


async def test_a_connection_that_is_not_known_or_comes_after_the_end_is_closed() -> None:
    here, clock = clocked()
    unknown = Kept()
    here.release(unknown)
    assert (unknown.closed, clock.timers) == (True, [])
    await here.aclose()
    (late,) = released(here)
    assert late.closed
    assert here.free() is None


@pytest.mark.parametrize(
    ("failure", "kept", "met"),
    [
        (Disconnected(), True, True),
        (ConnectionResetError(), True, True),
        (BrokenPipeError(), True, True),
        (Disconnected(), False, False),
        (BrokenHttp("odd"), True, False),
        (TimeoutError(), True, False),
    ],
)
async def test_only_after_a_kept_connection_met_its_end_none_is_kept_for_a_while(
    failure: Exception, kept: bool, met: bool
) -> None:
    here, clock = clocked()
    used = Kept()
    used.is_kept = kept
    answer = asyncio.get_running_loop().create_future()
    assert here.give_up(used, answer, failure) is met
    assert used.closed
    (now,) = released(here)
    assert now.closed is met
    clock.now += CLOSING_SECONDS - 0.1
    assert released(here)[0].closed is met
    clock.now += 0.1
    assert not released(here)[0].closed


async def test_an_answer_that_came_to_one_who_left_is_closed_itself() -> None:
    here, _ = clocked()
    closed: list[bool] = []
    answer = asyncio.get_running_loop().create_future()
    answer.set_result(SimpleNamespace(close=lambda: closed.append(True)))
    connection = Kept()
    assert not here.give_up(connection, answer, asyncio.CancelledError())
    assert (closed, connection.closed) == ([True], False)
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(OSError())
    assert not here.give_up(connection, failed, OSError())
    assert connection.closed


async def test_a_new_connection_is_looked_at_before_it_is_used() -> None:
    def refuse(_: object) -> None:
        raise ConnectFailed("no")

    made = PooledConnection(pool())
    made.transport = SimpleNamespace(abort=lambda: None)

    async def connect() -> PooledConnection:
        return made

    here: Any = Pool(HttpOrigin("a.example", 80, tls=False), check=refuse)
    here._connect = connect
    with pytest.raises(ConnectFailed, match="no"):
        await here.connected()
    assert (made.closed, here.reached, here._all) == (True, False, set())
    closed, other = PooledConnection(here), PooledConnection(here)
    closed.closed, made = True, other
    here._check, here._all = None, {closed}
    assert await here.connected() is other
    assert (here.reached, here._all) == (True, {other})


@pytest.mark.parametrize("raised", [OSError(errno.EPIPE, "x"), UnicodeError("x")])
async def test_a_connection_that_fails_says_that_none_came_to_stand(raised: Exception) -> None:
    async def connect() -> PooledConnection:
        raise raised

    async def wait() -> PooledConnection:
        await anyio.sleep_forever()
        raise AssertionError

    here: Any = Pool(HttpOrigin("a.example", 80, tls=False), connect_within=0.01)
    here._connect = connect
    with pytest.raises(ConnectFailed) as failed:
        await here.connected()
    assert (failed.value.args, failed.value.__cause__) == (raised.args, raised)
    here._connect = wait
    with anyio.fail_after(20), pytest.raises(ConnectTimedOut):
        await here.connected()
    assert not here.reached


# The addresses of a name.


async def test_the_first_failure_of_all_addresses_is_told_and_a_late_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def addresses(host: str, port: int) -> list[str]:
        return ["one", "two", "three"]

    outcomes: dict[str, Any] = {}
    asked: list[tuple[str, int]] = []

    async def connect(make: Any, address: str, port: int, **more: Any) -> Any:
        asked.append((address, port))
        if isinstance(outcomes[address], Exception):
            raise outcomes[address]
        return None, outcomes[address]

    monkeypatch.setattr(dialing, "_addresses", addresses)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    first = OSError("first")
    outcomes.update(one=first, two=OSError("second"), three=OSError("third"))
    with pytest.raises(OSError, match="first") as failed:
        await dialing.dial(Kept, "a.example", 7, None)
    assert failed.value is first
    assert asked == [("one", 7), ("two", 7), ("three", 7)]
    outcomes["two"] = made = Kept()
    asked.clear()
    assert await dialing.dial(Kept, "a.example", 7, None) is made
    assert asked == [("one", 7), ("two", 7)], "the third is not tried"
    assert not made.closed


async def test_an_address_is_no_name_and_is_not_looked_up() -> None:
    assert await dialing._addresses("::1", 80) == ["::1"]
    assert await dialing._addresses("127.0.0.1", 80) == ["127.0.0.1"]


# Who is at the other end of a Unix socket.


def test_the_user_of_a_unix_socket_is_what_the_kernel_says_or_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives(data: bytes) -> Any:
        return SimpleNamespace(getsockopt=lambda level, name, size: data)

    def refuses(*_: int) -> bytes:
        raise OSError

    if hasattr(socket, "SO_PEERCRED"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert unix_peer_uid(ours) == os.geteuid()
        assert unix_peer_uid(gives(struct.pack("=iII", 1, 2, 3))) == 2
    assert unix_peer_uid(gives(b"x")) is None
    assert unix_peer_uid(SimpleNamespace(getsockopt=refuses)) is None
    monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
    assert unix_peer_uid(gives(struct.pack("=II", 1, 2))) == 2


# What a failure shows.


def verification(code: int, message: str) -> ssl.SSLCertVerificationError:
    failure = ssl.SSLCertVerificationError(1, "certificate verify failed")
    failure.verify_code, failure.verify_message = code, message
    return failure


def tls(reason: str) -> ssl.SSLError:
    failure = ssl.SSLError(1, "odd")
    failure.reason = reason
    return failure


def behind(cause: BaseException, outer: Exception | None = None) -> Exception:
    failure = outer or ConnectFailed("x")
    failure.__cause__ = cause
    return failure


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "refused")


@pytest.mark.requirement("LOAD-2")
@pytest.mark.parametrize(
    ("failure", "seen"),
    [
        (TimeoutError(), TimedOut(doing="x", after=1.5, sent=True)),
        (httpx2.ReadTimeout(""), TimedOut(doing="x", after=1.5, sent=True)),
        (ConnectTimedOut(), TimedOut(doing="a connection", after=1.5, sent=False)),
        (httpx2.ConnectTimeout(""), TimedOut(doing="a connection", after=1.5, sent=False)),
        (ProxyFailed(HttpStatus(status=407)), HttpStatus(status=407)),
        (Disconnected(), NetworkFailure(fault=NetworkFault.CLOSED, stood=True)),
        (BrokenHttp("why"), NotMcp(fault=NotMcpFault.BROKEN_HTTP, detail="why")),
        (BadEncoding("why"), NotMcp(fault=NotMcpFault.BROKEN_HTTP, detail="why")),
        (NotHttp(), NotMcp(fault=NotMcpFault.CONTENT_TYPE, detail="it does not speak HTTP")),
        (anyio.EndOfStream(), NetworkFailure(fault=NetworkFault.CLOSED, stood=True)),
        (anyio.BrokenResourceError(), NetworkFailure(fault=NetworkFault.CLOSED, stood=True)),
        (httpx2.ReadError(""), NetworkFailure(fault=NetworkFault.CLOSED, stood=True)),
        (httpx2.ConnectError(""), NetworkFailure(fault=NetworkFault.OTHER, stood=False)),
        (behind(REFUSED), NetworkFailure(fault=NetworkFault.REFUSED, stood=False)),
        (behind(socket.gaierror(-2, "x")), NetworkFailure(fault=NetworkFault.NAME_RESOLUTION)),
        (behind(OSError(errno.ENETUNREACH, "x")), NetworkFailure(fault=NetworkFault.UNREACHABLE)),
        (OSError(errno.EPIPE, "x"), NetworkFailure(fault=NetworkFault.RESET, stood=True)),
        (behind(verification(10, "expired")), TlsFailure(fault=TlsFault.EXPIRED)),
        (behind(verification(9, "x")), TlsFailure(fault=TlsFault.NOT_YET_VALID)),
        (behind(verification(18, "x")), TlsFailure(fault=TlsFault.UNKNOWN_CA)),
        (behind(verification(62, "x")), TlsFailure(fault=TlsFault.WRONG_NAME)),
        (behind(verification(63, "odd")), TlsFailure(fault=TlsFault.NOT_VERIFIED, detail="odd")),
        (behind(tls("TLSV13_ALERT_CERTIFICATE_REQUIRED")), TlsFailure(fault=TlsFault.CLIENT_CERTIFICATE)),
        (tls("SSLV3_ALERT_BAD_CERTIFICATE"), TlsFailure(fault=TlsFault.CLIENT_CERTIFICATE)),
        (behind(tls("WRONG_VERSION_NUMBER")), TlsFailure(fault=TlsFault.HANDSHAKE)),
        (behind(tls("TLSV1_ALERT_INTERNAL_ERROR")), NetworkFailure(fault=NetworkFault.OTHER, stood=True)),
        (tls("BAD_RECORD_MAC"), NetworkFailure(fault=NetworkFault.OTHER, stood=True)),
        (ValueError("odd"), None),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_what_a_failure_shows_goes_by_its_type_and_number(failure: Exception, seen: Evidence | None) -> None:
    assert evidence_of(failure, doing="x", after=1.5) == seen


def test_the_failures_behind_a_failure_are_each_given_once() -> None:
    inner, context, member = OSError("inner"), OSError("context"), OSError("member")
    outer = behind(inner, ExceptionGroup("outer", [member, inner]))
    outer.__context__ = context
    inner.__context__ = outer
    assert [*causes(outer)] == [outer, inner, context, member]
    assert [*causes(None)] == []


@pytest.mark.parametrize(
    ("seen", "fault", "detail"),
    [
        (NetworkFault.NAME_RESOLUTION, NetworkFault.PROXY_REFUSED, "its host name does not resolve"),
        (NetworkFault.REFUSED, NetworkFault.PROXY_FAILED, "it refuses connections"),
        (NetworkFault.UNREACHABLE, NetworkFault.PROXY_FAILED, "its host cannot be reached"),
        (NetworkFault.OTHER, NetworkFault.PROXY_FAILED, "the connection to it failed"),
        (None, NetworkFault.PROXY_REFUSED, "the TLS handshake with it failed"),
    ],
)
def test_what_happens_on_the_way_to_a_proxy_is_told_of_the_proxy(
    seen: NetworkFault | None, fault: NetworkFault, detail: str
) -> None:
    evidence = NetworkFailure(fault=seen) if seen is not None else TlsFailure(fault=TlsFault.HANDSHAKE)
    assert dialing._no_proxy(evidence) == NetworkFailure(fault=fault, detail=detail)


def test_a_proxys_refusal_passes_only_where_its_status_says_so() -> None:
    assert dialing._refused_by_proxy(407) == HttpStatus(status=407)
    for status, fault in (
        (403, NetworkFault.PROXY_REFUSED),
        (404, NetworkFault.PROXY_REFUSED),
        (502, NetworkFault.PROXY_FAILED),
        (503, NetworkFault.PROXY_FAILED),
    ):
        told = NetworkFailure(fault=fault, detail=f"it answered HTTP {status}")
        assert dialing._refused_by_proxy(status) == told
