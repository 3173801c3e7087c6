"""A request to a server or to a small web API: its headers, how long it took, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from holdfast.config import ServerSpec
from holdfast.core import HttpStatus, OverBound, Redactor, TimedOut
from holdfast.errors import ServerFailure
from holdfast.wire.http import client as client_room
from holdfast.wire.http.client import ApiClient, HttpPeer, content_type, exchange, fetch
from holdfast.wire.http.connection import PooledConnection
from holdfast.wire.http.pool import HttpOrigin, Proxy
from tests.peers.http_fault import FaultServer, never_answer, respond

pytestmark = pytest.mark.anyio

HERE = "http://127.0.0.1:9/mcp"


def peer_at(url: str = HERE, **more: Any) -> Any:
    hub = more.pop("hub", "")
    return HttpPeer(ServerSpec(id="a", transport="http", url=url, hub=hub), Redactor(), **more)


async def test_a_timeout_says_how_long_was_waited_and_a_fault_of_ours_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([100.0, 102.26])
    monkeypatch.setattr(client_room, "time", SimpleNamespace(monotonic=lambda: next(times)))
    peer, fault = peer_at(), KeyError("odd")
    answers = Answers(peer, 200, 200)
    with pytest.raises(ServerFailure) as failed:
        async with peer.request("GET", peer.url, headers={}, doing="it"):
            raise TimeoutError
    assert failed.value.evidence == TimedOut(doing="it", after=2.3)
    monkeypatch.undo()
    with pytest.raises(KeyError) as raised:
        async with peer.request("GET", peer.url, headers={}, doing="it"):
            raise fault
    assert raised.value is fault
    assert answers.closed == [200, 200]


class Answers:
    """In place of the connections of a peer; each request gets the next status."""

    def __init__(self, peer: Any, *statuses: int) -> None:
        self.statuses = [*statuses]
        self.closed: list[int] = []
        self.heads: list[Any] = []
        self.dials = 0
        peer._pools["http"] = self

    def free(self) -> Any:
        return self

    async def connected(self) -> Any:
        self.dials += 1
        return self

    def head(self, *head: Any) -> Any:
        self.heads.append(head)
        return head

    def begin(self, head: Any, body: bytes, *, with_body: bool) -> Any:
        async def answer() -> Any:
            status = self.statuses.pop(0)
            return SimpleNamespace(status=status, headers={}, close=lambda: self.closed.append(status))

        return answer()


class Tokens:
    """A login that has one token after the other."""

    def __init__(self, *renewals: bool | Exception) -> None:
        self.renewals = [*renewals]
        self.refused: list[str] = []

    async def token(self) -> str:
        return f"token-number-{len(self.refused)}"

    async def renewed(self, refused: str) -> bool:
        self.refused.append(refused)
        renewal = self.renewals.pop(0)
        if isinstance(renewal, Exception):
            raise renewal
        return renewal

    def login(self) -> None:
        return None


@pytest.mark.parametrize(
    ("renewals", "statuses", "status", "closed", "asked"),
    [
        ([True], [401, 200], 200, [401], 1),
        ([True], [401, 401], 401, [401], 1),
        ([False], [401], 401, [], 1),
        ([], [403], 403, [], 0),
    ],
)
async def test_a_request_that_is_refused_for_its_token_is_sent_once_more_with_another(
    renewals: list[bool], statuses: list[int], status: int, closed: list[int], asked: int
) -> None:
    tokens = Tokens(*renewals)
    peer = peer_at(authorizer=tokens)
    answers = Answers(peer, *statuses)
    response = await peer.send("POST", peer.url, {"x": "y"}, b"{}")
    assert (response.status, answers.closed, answers.dials, answers.statuses) == (status, closed, 0, [])
    assert tokens.refused == ["token-number-0"] * asked
    sent = [head[2]["authorization"] for head in answers.heads]
    assert sent == [f"Bearer token-number-{number}" for number in range(len(statuses))]
    method, target, headers, body = answers.heads[0]
    assert (method, target, body) == ("POST", "/mcp", b"{}")
    assert headers == {
        "accept": "*/*", "accept-encoding": "identity", "user-agent": "holdfast", "x": "y",
        "authorization": "Bearer token-number-0",
    }  # fmt: skip


async def test_a_refusal_is_closed_where_no_other_token_can_be_had() -> None:
    fault = OSError("no login")
    peer = peer_at(authorizer=Tokens(fault))
    answers = Answers(peer, 401)
    with pytest.raises(OSError, match="no login") as raised:
        await peer.send("GET", peer.url, {}, None)
    assert raised.value is fault
    assert answers.closed == [401]


@pytest.mark.parametrize(
    ("url", "origin", "tls", "proxied"),
    [
        ("http://a.example/x", HttpOrigin("a.example", 80, tls=False), False, True),
        ("https://a.example/x", HttpOrigin("a.example", 443, tls=True), True, True),
        ("https://a.example:8443/x", HttpOrigin("a.example", 8443, tls=True), True, True),
        ("http://127.0.0.1/x", HttpOrigin("127.0.0.1", 80, tls=False), False, False),
    ],
)
async def test_the_connections_of_a_peer_go_to_its_origin_and_through_the_proxy_unless_it_is_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, url: str, origin: HttpOrigin, tls: bool, proxied: bool
) -> None:
    proxy = Proxy("p.example", 3128)
    monkeypatch.setattr(client_room, "_proxy_for", lambda _: proxy)
    peer = peer_at(url, connect_within=7.0)
    assert not peer.connecting
    pool = peer._pool(peer.url)
    assert peer._pools == {peer.url.scheme: pool}
    assert (pool.origin, pool._proxy, pool._connect_within) == (origin, proxy if proxied else None, 7.0)
    assert (pool._tls is not None) is tls
    assert peer.connecting
    pool.reached = True
    assert not peer.connecting
    hub = peer_at(url, hub="a.example:1")
    assert hub._pool(hub.url)._proxy is None, "a hub of the fleet is reached as it is"


def test_a_content_type_is_one_word_without_its_parameters() -> None:
    for value, kind in (
        ("Text/HTML; charset=utf-8", "text/html"),
        ("application/json, application/json", "application/json"),
        (" a/b ;c,d", "a/b"),
        ("", ""),
    ):
        response: Any = SimpleNamespace(headers={"content-type": value} if value else {})
        assert content_type(response) == kind


# A small web API.


async def test_a_body_is_json_unless_its_request_has_headers_of_its_own() -> None:
    async with FaultServer(respond(418, "no", headers={"x-a": "b"})) as server, ApiClient(server.origin) as api:
        for body, headers, sent in (
            (b"{}", None, "application/json"),
            (None, None, None),
            (b"a=b", {}, None),
            (b"a=b", {"content-type": "text/plain"}, "text/plain"),
        ):
            answer = await api.ask("POST", "/x", body=body, headers=headers, within=20)
            assert (answer.status, answer.headers["x-a"], answer.body) == (418, "b", b"no")
            request = server.requests[-1]
            assert (request.method, request.path, request.body) == ("POST", "/x", body or b"")
            assert request.headers.get("content-type") == sent


async def test_an_answer_that_does_not_come_says_what_was_waited_for_and_how_long() -> None:
    begun: list[bool] = []
    async with FaultServer(never_answer) as server, ApiClient(server.origin) as api:
        asks: list[tuple[Callable[[], Any], str]] = [
            (lambda: api.ask("GET", "/x", within=0.05, on_sending=lambda: begun.append(True)), "its answer"),
            (lambda: api.ask("GET", "/x", within=0.05, doing="the key"), "the key"),
            (lambda: api.read(within=0.05), "the document"),
            (lambda: anext(api.events("/x", silence=0.05)), "its answer"),
            (lambda: fetch(server.origin, within=0.05), "the document"),
            (lambda: exchange("POST", server.origin, doing="the token", within=0.05), "the token"),
        ]
        with anyio.fail_after(20):
            for ask, doing in asks:
                with pytest.raises(ServerFailure) as failed:
                    await ask()
                assert failed.value.evidence == TimedOut(doing=doing, after=0.05)
    assert begun == [True]


async def test_a_document_is_read_up_to_its_bound_and_an_error_is_no_document() -> None:
    async with FaultServer(respond(200, "four")) as server:
        assert await fetch(server.origin, largest=4) == b"four"
        with pytest.raises(ServerFailure) as failed:
            await fetch(server.origin, largest=3)
        assert isinstance(failed.value.evidence, OverBound)
        answer = await exchange("POST", server.origin, content=b"a=b", doing="x")
        assert (answer.status, answer.body) == (200, b"four")
        assert "content-type" not in server.requests[-1].headers
    async with FaultServer(respond(300, "odd")) as server:
        with pytest.raises(ServerFailure) as failed:
            await fetch(server.origin)
        assert isinstance(failed.value.evidence, HttpStatus)
        assert (failed.value.evidence.status, failed.value.evidence.body) == (300, "odd")


# One connection.


class Wire:
    """In place of a transport."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def write(self, data: bytes) -> None:
        self.log.append(data)

    def writelines(self, parts: Any) -> None:
        self.log.append([*parts])

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.log.append("aborted")

    def close(self) -> None:
        self.log.append("closed")


async def test_a_request_is_written_once_and_a_long_one_is_not_copied() -> None:
    owner: Any = SimpleNamespace(release=lambda one: None)
    connection, wire = PooledConnection(owner), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]  # in place of one
    fits, long = b"x" * (1 << 16), b"x" * ((1 << 16) + 1)
    connection.begin(b"head", fits).cancel()
    connection.begin(b"head", long).cancel()
    assert wire.log == [b"head" + fits, [b"head", long]]


async def test_the_answer_to_one_who_has_left_harms_nothing_and_a_peer_that_closes_is_not_kept() -> None:
    released: list[Any] = []
    owner: Any = SimpleNamespace(release=released.append)
    for more, log in ((b"", []), (b"connection: close\r\n", ["closed"])):
        connection, wire = PooledConnection(owner), Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]  # in place of one
        connection.begin(b"GET", b"").cancel()
        wire.log.clear()
        released.clear()
        connection.data_received(b"HTTP/1.1 200 OK\r\n%bcontent-length: 2\r\n\r\nok" % more)
        assert (released, wire.log) == ([] if more else [connection], log)
        assert connection.closed is bool(more)
